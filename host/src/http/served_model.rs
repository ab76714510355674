//! The loaded model as requests and plugins see it.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use super::errors::{ApiError, Code, shown};
use super::unix_seconds;
use crate::engine::ModelInfo;
use crate::plugin::{Vocabulary, VocabularyError};
use crate::text::{ChatTemplate, Tokenizer};

/// The loaded model as requests and plugins see it.
pub struct ServedModel {
    /// The name requests give as `model`.
    pub(super) id: String,
    /// Others that requests may give.
    aliases: Vec<String>,
    /// When it was loaded, in Unix seconds.
    pub(super) created: u64,
    pub(super) tokenizer: Arc<Tokenizer>,
    /// None for a model that only completes.
    pub(super) template: Option<ChatTemplate>,
    /// The same tokens as plugins see them.
    pub(super) vocabulary: Arc<Vocabulary>,
}

impl ServedModel {
    /// A model that requests call `id`. `tokenizer` is padded to the width of
    /// a logits row.
    ///
    /// # Errors
    /// When the tokenizer and `info` do not fit together.
    pub fn new(
        id: String,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        info: &ModelInfo,
    ) -> Result<Self, VocabularyError> {
        let tokenizer = Arc::new(tokenizer);
        Ok(Self {
            id,
            aliases: Vec::new(),
            created: unix_seconds(SystemTime::now()),
            vocabulary: Arc::new(plugin_vocabulary(&tokenizer, info)?),
            tokenizer,
            template,
        })
    }

    /// The same, with other names that requests may give.
    #[must_use]
    pub fn also_called(mut self, aliases: Vec<String>) -> Self {
        self.aliases = aliases;
        self
    }

    /// All names that requests may give, the one of answers first.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.id)
            .chain(&self.aliases)
            .map(String::as_str)
    }

    /// What to say of a name that is none of its own.
    pub(super) fn unknown(&self, name: &Value) -> ApiError {
        let own: Vec<String> = self.names().map(|own| format!("`{own}`")).collect();
        let message = format!(
            "there is no model {}; this server has loaded {}, and one model at a time",
            shown(name),
            own.join(", also called ")
        );
        ApiError::of(Code::ModelNotFound, "model", message)
    }

    /// The name requests give as `model`.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The tokenizer as plugins see it.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }
}

fn plugin_vocabulary(
    tokenizer: &Arc<Tokenizer>,
    info: &ModelInfo,
) -> Result<Vocabulary, VocabularyError> {
    let (offsets, bytes) = tokenizer.all_token_bytes();
    let encoder = tokenizer.clone();
    let encode = move |text: &str| {
        encoder.encode(text, false).unwrap_or_else(|error| {
            tracing::warn!(%error, "a plugin's text cannot be tokenized");
            Vec::new()
        })
    };
    Vocabulary::new(
        info.clone(),
        offsets.to_vec(),
        bytes.to_vec(),
        tokenizer.special_tokens().to_vec(),
        Box::new(encode),
    )
}
