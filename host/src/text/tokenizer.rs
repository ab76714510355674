//! Text to token ids.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokenizers::{AddedVocabulary, Model, OffsetType, PreTokenizer};

use super::tokenizer_json::{Description, Spelling, first_token, read_vocabulary};
use super::{GgufVocabulary, Vocabulary, byte_level};

/// Why a tokenizer cannot be made, or cannot read a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A kind of tokenizer that is not implemented.
    #[error("{what} `{name}` is not supported; supported: {supported}")]
    Unsupported {
        what: &'static str,
        name: String,
        supported: &'static str,
    },
    /// The description of the tokenizer makes no sense.
    #[error("the tokenizer cannot be read: {0}")]
    Invalid(String),
    /// This text cannot be written in tokens.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
    /// A defect in the tokenizer, contained.
    #[error("the tokenizer failed: {0}")]
    Panicked(String),
}

/// Reads text as token ids, and knows the bytes of each.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocabulary: Arc<Vocabulary>,
    bos: Option<u32>,
    /// What is found in plain text before merging: with SentencePiece, tokens
    /// that a user defined, such as runs of spaces; never special ones.
    plain: AddedVocabulary,
    /// Set where a byte-level vocabulary lacks tokens for some bytes.
    is_partial: bool,
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json`. Truncation and padding that it
    /// asks for are left out: a prompt is never shortened.
    ///
    /// # Errors
    /// Not such a file, or a model or decoder that is not supported.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let description: Description = serde_json::from_slice(json).map_err(invalid)?;
        let spelling = description.spelling()?;
        let mut inner = contained(|| tokenizers::Tokenizer::from_bytes(json).map_err(invalid))?;
        inner.with_truncation(None).map_err(invalid)?;
        inner.with_padding(None);
        let vocabulary = read_vocabulary(&inner, spelling)?;
        let bos = contained(|| first_token(&inner, &vocabulary))?;
        Ok(Self::new(inner, vocabulary, bos, spelling))
    }

    /// Makes the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// A kind that is not supported, or metadata that contradict themselves.
    pub fn from_gguf(vocabulary: GgufVocabulary) -> Result<Self, TokenizerError> {
        let layout = vocabulary.layout()?;
        let json = serde_json::to_vec(&layout.json).map_err(invalid)?;
        let inner = contained(|| tokenizers::Tokenizer::from_bytes(&json).map_err(invalid))?;
        let vocabulary = Vocabulary::new(&layout.pieces, layout.special);
        Ok(Self::new(inner, vocabulary, layout.bos, layout.spelling))
    }

    /// A small tokenizer of these pieces, for scripted models: `pieces[i]`
    /// holds the bytes of id `i`, and `special` names those without any. Text
    /// is read byte by byte, or as a piece where a whole word is one.
    ///
    /// # Errors
    /// Two equal pieces, a name without a piece, or BOS out of range.
    pub fn from_pieces(
        pieces: &[&[u8]],
        special: &[(u32, &str)],
        bos: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<String> = pieces
            .iter()
            .map(|piece| byte_level::spell(piece))
            .collect();
        let mut token_types = vec![1; tokens.len()];
        for &(id, name) in special {
            let at = id as usize;
            let (Some(token), Some(kind)) = (tokens.get_mut(at), token_types.get_mut(at)) else {
                return Err(TokenizerError::Invalid(format!("{name} has no piece {id}")));
            };
            *token = name.into();
            *kind = 3;
        }
        Self::from_gguf(GgufVocabulary {
            model: "gpt2".into(),
            pre: "llama-bpe".into(),
            tokens,
            token_types,
            bos,
            add_bos: Some(bos.is_some()),
            ..GgufVocabulary::default()
        })
    }

    fn new(
        inner: tokenizers::Tokenizer,
        vocabulary: Vocabulary,
        bos: Option<u32>,
        spelling: Spelling,
    ) -> Self {
        let is_single_byte = |id| match vocabulary.token_bytes(id) {
            &[byte] => Some(byte),
            _ => None,
        };
        let mut has_byte = [false; 256];
        for byte in (0..vocabulary.size()).filter_map(is_single_byte) {
            has_byte[usize::from(byte)] = true;
        }
        let mut plain = match spelling {
            Spelling::ByteLevel => AddedVocabulary::new(),
            Spelling::SentencePiece => inner.get_added_vocabulary().clone(),
        };
        plain.set_encode_special_tokens(true);
        Self {
            plain,
            is_partial: spelling == Spelling::ByteLevel && has_byte.contains(&false),
            inner,
            vocabulary: Arc::new(vocabulary),
            bos,
        }
    }

    /// The ids of a text. `special` says whether the names of special tokens
    /// in it stand for those tokens, as in a rendered chat template, or are
    /// ordinary text, as in what a user wrote. Adds no token of its own.
    ///
    /// # Errors
    /// Text that the vocabulary cannot write.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let ids = contained(|| {
            if special {
                let encoding = self.inner.encode_fast(text, false).map_err(unwritable)?;
                Ok(encoding.get_ids().to_vec())
            } else {
                self.encode_plain(text).map_err(unwritable)
            }
        })?;
        if self.is_partial {
            self.check_complete(text, &ids)?;
        }
        Ok(ids)
    }

    /// The ids of a prompt: special tokens are read as such, and BOS comes
    /// first, once, if the model wants it.
    ///
    /// # Errors
    /// Text that the vocabulary cannot write.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode(text, true)?;
        if let Some(bos) = self.bos.filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The token that [`encode_prompt`](Self::encode_prompt) puts in front.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The bytes of every id.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// See [`Vocabulary::token_bytes`].
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.token_bytes(id)
    }

    /// See [`Vocabulary::all_token_bytes`].
    pub fn all_token_bytes(&self) -> (&[u32], &[u8]) {
        self.vocabulary.all_token_bytes()
    }

    /// See [`Vocabulary::special_tokens`].
    pub fn special_tokens(&self) -> &[(u32, String)] {
        self.vocabulary.special_tokens()
    }

    /// Number of ids the tokenizer knows.
    pub fn size(&self) -> u32 {
        self.vocabulary.size()
    }

    /// See [`Vocabulary::pad_to`].
    pub fn pad_to(&mut self, row_width: u32) {
        Arc::make_mut(&mut self.vocabulary).pad_to(row_width);
    }

    /// Reads no special tokens: the tokenizer's own steps but for that.
    fn encode_plain(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        let normalizer = self.inner.get_normalizer();
        let mut words = self.plain.extract_and_normalize(normalizer, text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words)?;
        }
        let model = self.inner.get_model();
        words.tokenize(|word| model.tokenize(word.get()))?;
        let encoding = words.into_encoding(None, 0, OffsetType::None)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// A byte without a token is dropped silently by the library.
    fn check_complete(&self, text: &str, ids: &[u32]) -> Result<(), TokenizerError> {
        let mut rest = text.as_bytes();
        for &id in ids {
            let name = self.vocabulary.special_name(id).unwrap_or_default();
            let token = self.token_bytes(id);
            let token = if token.is_empty() {
                name.as_bytes()
            } else {
                token
            };
            match rest.strip_prefix(token) {
                Some(after) => rest = after,
                None => break,
            }
        }
        match rest.first() {
            None => Ok(()),
            Some(byte) => Err(TokenizerError::Encode(format!(
                "no token for byte 0x{byte:02X} at {}",
                text.len() - rest.len()
            ))),
        }
    }
}

pub(super) fn invalid(error: impl Into<tokenizers::Error>) -> TokenizerError {
    TokenizerError::Invalid(error.into().to_string())
}

fn unwritable(error: impl Into<tokenizers::Error>) -> TokenizerError {
    TokenizerError::Encode(error.into().to_string())
}

/// Runs code of the library; a panic in it is an error, not the end of the
/// thread. The library keeps no state that a panic could leave half changed.
fn contained<T>(run: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(TokenizerError::Panicked(super::panic_text(panic.as_ref()))))
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
