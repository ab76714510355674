//! What plugins may know of the tokenizer.

use super::cache::sha256;
use super::vocabulary_file;
use crate::engine::{ModelInfo, TokenId};

/// Tokenizes text without adding special tokens and without reading any in it.
pub type Encode = Box<dyn Fn(&str) -> Vec<TokenId> + Send + Sync>;

/// The tokenizer and the facts about the model, read only, shared by all
/// instances.
pub struct Vocabulary {
    info: ModelInfo,
    offsets: Vec<u32>,
    bytes: Vec<u8>,
    special_tokens: Vec<(TokenId, String)>,
    encode: Encode,
    digest: String,
}

/// Why the parts of a vocabulary do not fit together.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    #[error(
        "a vocabulary of {vocabulary_size} tokens needs {} offsets, there are {n_offsets}",
        .vocabulary_size + 1
    )]
    Offsets {
        vocabulary_size: usize,
        n_offsets: usize,
    },
    #[error("the offsets of the tokens' bytes do not ascend from 0 to {n_bytes}")]
    Order { n_bytes: usize },
    #[error("the tokenizer knows {tokenizer_size} ids, the model's rows have {vocabulary_size}")]
    Sizes {
        tokenizer_size: u32,
        vocabulary_size: u32,
    },
}

impl Vocabulary {
    /// Token `i` has the bytes `bytes[offsets[i]..offsets[i + 1]]`: none if it
    /// is special or padding.
    ///
    /// # Errors
    /// When there are not `vocabulary_size + 1` offsets that ascend from 0 to
    /// the number of bytes, or the tokenizer is larger than the vocabulary.
    pub fn new(
        info: ModelInfo,
        offsets: Vec<u32>,
        bytes: Vec<u8>,
        special_tokens: Vec<(TokenId, String)>,
        encode: Encode,
    ) -> Result<Self, VocabularyError> {
        let vocabulary_size = info.vocabulary_size as usize;
        if info.tokenizer_size > info.vocabulary_size {
            return Err(VocabularyError::Sizes {
                tokenizer_size: info.tokenizer_size,
                vocabulary_size: info.vocabulary_size,
            });
        }
        if offsets.len() != vocabulary_size + 1 {
            return Err(VocabularyError::Offsets {
                vocabulary_size,
                n_offsets: offsets.len(),
            });
        }
        let ends_fit = offsets[0] == 0 && offsets[vocabulary_size] as usize == bytes.len();
        if !ends_fit || !offsets.is_sorted() {
            return Err(VocabularyError::Order {
                n_bytes: bytes.len(),
            });
        }
        let file = vocabulary_file::to_bytes(&info, &offsets, &bytes, &special_tokens);
        Ok(Self {
            digest: sha256(&file),
            info,
            offsets,
            bytes,
            special_tokens,
            encode,
        })
    }

    /// Facts about the model.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// SHA-256 of everything but the tokenizer, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Everything but the tokenizer.
    pub(super) fn to_file(&self) -> Vec<u8> {
        vocabulary_file::to_bytes(&self.info, &self.offsets, &self.bytes, &self.special_tokens)
    }

    /// The bytes of one token, or `None` at or above the vocabulary size.
    pub(super) fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        let end = *self.offsets.get(id as usize + 1)?;
        Some(&self.bytes[self.offsets[id as usize] as usize..end as usize])
    }

    pub(super) fn all_token_bytes(&self) -> (&[u32], &[u8]) {
        (&self.offsets, &self.bytes)
    }

    pub(super) fn special_tokens(&self) -> &[(TokenId, String)] {
        &self.special_tokens
    }

    pub(super) fn encode(&self, text: &str) -> Vec<TokenId> {
        (self.encode)(text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn vocabulary(offsets: &[u32], bytes: &[u8]) -> Result<Vocabulary, VocabularyError> {
        let info = ModelInfo {
            vocabulary_size: 3,
            tokenizer_size: 2,
            end_of_sequence: vec![1],
            context_length: 8,
        };
        let encode = Box::new(|_: &str| Vec::new());
        Vocabulary::new(info, offsets.to_vec(), bytes.to_vec(), Vec::new(), encode)
    }

    #[test]
    fn tokens_are_cut_at_their_offsets() {
        let vocabulary = vocabulary(&[0, 2, 2, 3], b"abc").unwrap();
        assert_eq!(vocabulary.token_bytes(0), Some(&b"ab"[..]));
        assert_eq!(vocabulary.token_bytes(1), Some(&b""[..]));
        assert_eq!(vocabulary.token_bytes(2), Some(&b"c"[..]));
        assert_eq!(vocabulary.token_bytes(3), None);
        assert_eq!(vocabulary.token_bytes(u32::MAX), None);
    }

    #[test]
    fn offsets_that_do_not_fit_are_refused() {
        for offsets in [
            &[0, 1, 2][..],
            &[0, 2, 1, 3],
            &[0, 1, 2, 4],
            &[1, 1, 2, 3],
            &[],
        ] {
            assert!(vocabulary(offsets, b"abc").is_err(), "{offsets:?}");
        }
    }
}
