//! Made vocabularies: no model is needed to find out what a plugin does.

use std::sync::Arc;

use super::AuthorError;
use crate::engine::{ModelInfo, TokenId};
use crate::plugin::Vocabulary;

/// Ids at the end of a vocabulary of text that stand for nothing.
const N_PADDING: u32 = 8;
const CONTEXT_LENGTH: u32 = 8192;

/// A vocabulary of text, of at least 512 tokens: every byte, then words with
/// and without a space before them, the special token `<end>`, and padding.
pub(super) fn of_text(size: u32) -> Result<Arc<Vocabulary>, AuthorError> {
    let end = end_of(size);
    let texts = (0..end).map(|id| match u8::try_from(id) {
        Ok(byte) => vec![byte],
        Err(_) => word(id - 256),
    });
    let padding = (end..size).map(|_| Vec::new());
    let info = ModelInfo {
        vocabulary_size: size,
        tokenizer_size: end + 1,
        end_of_sequence: vec![end],
        context_length: CONTEXT_LENGTH,
    };
    make(info, texts.chain(padding), vec![(end, "<end>".to_owned())])
}

/// The id that ends a sequence in a vocabulary of text; all ids below it have
/// text.
pub(super) fn end_of(size: u32) -> TokenId {
    size - N_PADDING - 1
}

/// The n-th word, over the lower-case letters, shortest first.
fn word(n: u32) -> Vec<u8> {
    let mut letters = Vec::new();
    let mut rest = n / 2;
    loop {
        letters.push(b'a' + (rest % 26) as u8);
        if rest < 26 {
            break;
        }
        rest = rest / 26 - 1;
    }
    if n.is_multiple_of(2) {
        letters.push(b' ');
    }
    letters.reverse();
    letters
}

/// A vocabulary of these texts, or of the ids as decimal numbers.
pub(super) fn of_case(
    size: u32,
    texts: Option<&[String]>,
    end_ids: &[TokenId],
) -> Result<Arc<Vocabulary>, AuthorError> {
    let info = ModelInfo {
        vocabulary_size: size,
        tokenizer_size: size,
        end_of_sequence: end_ids.to_vec(),
        context_length: CONTEXT_LENGTH,
    };
    match texts {
        Some(texts) => make(info, texts.iter().map(|text| text.clone().into()), vec![]),
        None => make(info, (0..size).map(|id| id.to_string().into()), vec![]),
    }
}

/// Texts are tokenised byte by byte: the ids of single bytes, where there are
/// such.
fn make(
    info: ModelInfo,
    texts: impl Iterator<Item = Vec<u8>>,
    special: Vec<(TokenId, String)>,
) -> Result<Arc<Vocabulary>, AuthorError> {
    let (mut offsets, mut bytes) = (vec![0], Vec::new());
    let mut singles = [None; 256];
    for (id, text) in (0..).zip(texts) {
        if let [byte] = text[..] {
            singles[usize::from(byte)].get_or_insert(id);
        }
        bytes.extend(text);
        offsets.push(bytes.len() as u32);
    }
    let encode = move |text: &str| {
        let ids = text.bytes().map(|byte| singles[usize::from(byte)]);
        ids.flatten().collect()
    };
    Vocabulary::new(info, offsets, bytes, special, Box::new(encode))
        .map(Arc::new)
        .map_err(|error| AuthorError::Usage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::word;

    #[test]
    fn words_are_counted_without_gaps() {
        let words = [0, 1, 50, 51, 52, 54, 1404].map(word);
        assert_eq!(
            words.map(|word| String::from_utf8_lossy(&word).into_owned()),
            [" a", "a", " z", "z", " aa", " ab", " aaa"]
        );
    }
}
