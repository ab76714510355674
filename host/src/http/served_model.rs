//! The loaded model as requests and plugins see it.

use std::sync::Arc;
use std::time::SystemTime;

use super::unix_seconds;
use crate::engine::ModelInfo;
use crate::plugin::{Vocabulary, VocabularyError};
use crate::text::{ChatTemplate, Tokenizer};

/// The loaded model as requests and plugins see it.
pub struct ServedModel {
    /// The name requests give as `model`.
    pub(super) id: String,
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
            created: unix_seconds(SystemTime::now()),
            vocabulary: Arc::new(plugin_vocabulary(&tokenizer, info)?),
            tokenizer,
            template,
        })
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
