//! A vocabulary as bytes, on its way to the process that takes snapshots: all
//! of it but the tokenizer.

use serde::{Deserialize, Serialize};

use super::vocabulary::{Encode, Vocabulary, VocabularyError};
use crate::engine::{ModelInfo, TokenId};

/// The first line; the offsets follow, little-endian, then the bytes.
#[derive(Serialize, Deserialize)]
struct Header {
    vocabulary_size: u32,
    tokenizer_size: u32,
    end_of_sequence: Vec<TokenId>,
    context_length: u32,
    special_tokens: Vec<(TokenId, String)>,
}

/// The bytes were not written by [`to_bytes`].
#[derive(Debug, thiserror::Error)]
pub(super) enum FormatError {
    #[error("the vocabulary's header is broken: {0}")]
    Header(#[from] serde_json::Error),
    #[error("the vocabulary ends too early")]
    Truncated,
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
}

pub(super) fn to_bytes(
    info: &ModelInfo,
    offsets: &[u32],
    bytes: &[u8],
    special_tokens: &[(TokenId, String)],
) -> Vec<u8> {
    let header = Header {
        vocabulary_size: info.vocabulary_size,
        tokenizer_size: info.tokenizer_size,
        end_of_sequence: info.end_of_sequence.clone(),
        context_length: info.context_length,
        special_tokens: special_tokens.to_vec(),
    };
    // Numbers and strings always become JSON.
    let mut file = serde_json::to_vec(&header).unwrap_or_default();
    file.push(b'\n');
    for offset in offsets {
        file.extend_from_slice(&offset.to_le_bytes());
    }
    file.extend_from_slice(bytes);
    file
}

/// The vocabulary with another tokenizer.
pub(super) fn from_bytes(file: &[u8], encode: Encode) -> Result<Vocabulary, FormatError> {
    let end = file.iter().position(|&byte| byte == b'\n');
    let (header, rest) = file.split_at(end.ok_or(FormatError::Truncated)?);
    let header: Header = serde_json::from_slice(header)?;
    let n_offsets = header.vocabulary_size as usize + 1;
    let (offsets, bytes) = rest[1..]
        .split_at_checked(n_offsets * 4)
        .ok_or(FormatError::Truncated)?;
    let offsets = offsets.as_chunks::<4>().0;
    let info = ModelInfo {
        vocabulary_size: header.vocabulary_size,
        tokenizer_size: header.tokenizer_size,
        end_of_sequence: header.end_of_sequence,
        context_length: header.context_length,
    };
    Ok(Vocabulary::new(
        info,
        offsets
            .iter()
            .map(|&word| u32::from_le_bytes(word))
            .collect(),
        bytes.to_vec(),
        header.special_tokens,
        encode,
    )?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let info = ModelInfo {
            vocabulary_size: 3,
            tokenizer_size: 2,
            end_of_sequence: vec![1],
            context_length: 8,
        };
        let special = vec![(1, "<a\nb>".to_owned())];
        let file = to_bytes(&info, &[0, 2, 2, 3], b"\n\xffc", &special);
        let encode = || -> Encode { Box::new(|_| Vec::new()) };
        let read = from_bytes(&file, encode()).unwrap();
        assert_eq!(read.info(), &info);
        assert_eq!(read.all_token_bytes(), (&[0, 2, 2, 3][..], &b"\n\xffc"[..]));
        assert_eq!(read.special_tokens(), special);
        for end in 0..file.len() {
            assert!(from_bytes(&file[..end], encode()).is_err(), "{end}");
        }
    }
}
