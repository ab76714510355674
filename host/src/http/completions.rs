//! `prompt`, the field of its own of `/v1/completions`.

use serde_json::Value;

use super::choice::Echo;
use super::errors::{ApiError, Code, shown};
use super::fields::{Given, as_integer};
use super::logprobs::{prompt_bytes, prompt_text};
use crate::engine::TokenId;
use crate::text::{Tokenizer, TokenizerError, Vocabulary};

/// A prompt, as ids and as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) ids: Vec<TokenId>,
    /// None if it was given as ids, or made from messages.
    pub(super) text: Option<String>,
}

impl Prompt {
    /// How it is shown before a completion.
    pub(super) fn echo(&self, tokenizer: &Tokenizer) -> Echo {
        let vocabulary = tokenizer.vocabulary();
        let text = match &self.text {
            Some(text) => text.clone(),
            None => prompt_text(&self.ids, vocabulary),
        };
        let first = self.ids.first().copied();
        let named = first.and_then(|id| vocabulary.special_name(id));
        let starts_hidden = first.is_some()
            && first == tokenizer.bos()
            && !named.is_some_and(|name| text.starts_with(name));
        Echo {
            n_tokens: self.ids.len(),
            starts_hidden,
            spaces_hidden: self.added_spaces(usize::from(starts_hidden), &text, vocabulary),
            text,
        }
    }

    /// Tokens from the `first` on that begin with a space which `text` has not.
    /// SentencePiece's tokenizers add one in front, and after special tokens.
    fn added_spaces(&self, first: usize, text: &str, vocabulary: &Vocabulary) -> Vec<usize> {
        let mut rest = text.as_bytes();
        let mut added = Vec::new();
        for (index, &id) in self.ids.iter().enumerate().skip(first) {
            let bytes = prompt_bytes(id, vocabulary);
            let without = bytes.strip_prefix(b" ").and_then(|b| rest.strip_prefix(b));
            match (rest.strip_prefix(bytes), without) {
                (Some(after), _) => rest = after,
                (None, Some(after)) => {
                    added.push(index);
                    rest = after;
                }
                // Normalized: from here on nobody can tell.
                (None, None) => break,
            }
        }
        added
    }
}

/// Reads `prompt`: a string, a list of token ids, or a list of either, in
/// which each becomes a prompt.
pub(super) fn read_prompts(
    given: &Given,
    tokenizer: &Tokenizer,
    max_prompts: usize,
) -> Result<Vec<Prompt>, ApiError> {
    const EXPECTED: &str =
        "a string, a list of token ids, a list of strings or a list of lists of token ids";
    let prompts = match &given.value {
        Value::String(text) => vec![tokenize(text, tokenizer)?],
        Value::Array(items) => match items.first() {
            Some(Value::Number(_)) => vec![read_ids(given, items, tokenizer)?],
            Some(Value::String(_) | Value::Array(_)) if items.len() > max_prompts => {
                return Err(given.invalid(format_args!("at most {max_prompts} prompts")));
            }
            Some(Value::String(_)) => items
                .iter()
                .map(|item| item.as_str().ok_or_else(|| given.invalid(EXPECTED)))
                .map(|text| tokenize(text?, tokenizer))
                .collect::<Result<_, _>>()?,
            Some(Value::Array(_)) => items
                .iter()
                .map(|item| item.as_array().ok_or_else(|| given.invalid(EXPECTED)))
                .map(|ids| read_ids(given, ids?, tokenizer))
                .collect::<Result<_, _>>()?,
            _ => return Err(given.invalid(EXPECTED)),
        },
        _ => return Err(given.invalid(EXPECTED)),
    };
    if prompts.iter().any(|prompt| prompt.ids.is_empty()) {
        let message = "a prompt has no tokens; the model needs at least one to start from";
        return Err(ApiError::of(Code::InvalidValue, given.sent_as, message));
    }
    Ok(prompts)
}

fn read_ids(given: &Given, items: &[Value], tokenizer: &Tokenizer) -> Result<Prompt, ApiError> {
    let ids = items
        .iter()
        .map(|item| read_id(given.sent_as, item, tokenizer.size()));
    Ok(Prompt {
        ids: ids.collect::<Result<_, _>>()?,
        text: None,
    })
}

/// Reads a token id below `limit`.
pub(super) fn read_id(field: &str, item: &Value, limit: u32) -> Result<TokenId, ApiError> {
    as_integer(item)
        .and_then(|id| TokenId::try_from(id).ok())
        .filter(|id| *id < limit)
        .ok_or_else(|| {
            let message = format!(
                "`{field}` contains {}; a token id is an integer from 0 to {}",
                shown(item),
                limit.saturating_sub(1)
            );
            ApiError::of(Code::InvalidValue, field, message)
        })
}

fn tokenize(text: &str, tokenizer: &Tokenizer) -> Result<Prompt, ApiError> {
    let ids = tokenizer
        .encode_prompt(text)
        .map_err(|error| tokenizer_error("prompt", &error))?;
    Ok(Prompt {
        ids,
        text: Some(text.to_owned()),
    })
}

/// Why a text could not be tokenized, for the client who sent it in `field`.
pub(super) fn tokenizer_error(field: &str, error: &TokenizerError) -> ApiError {
    match error {
        TokenizerError::Panicked(_) => ApiError::new(Code::InternalError, error.to_string()),
        _ => ApiError::of(Code::InvalidValue, field, error.to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Twelve pieces: 0 `<bos>`, 1 `<eos>`, then a, b, c, space, newline, d
    /// and bytes of two characters.
    fn read(prompt: Value) -> Result<Vec<Vec<TokenId>>, ApiError> {
        let pieces: [&[u8]; 12] = [
            b"",
            b"",
            b"a",
            b"b",
            b"c",
            b" ",
            b"\n",
            b"d",
            b"\xf0\x9f",
            b"\x98\x80",
            b"\xe3",
            b"\x81\x82",
        ];
        let special = [(0, "<bos>"), (1, "<eos>")];
        let tokenizer = Tokenizer::from_pieces(&pieces, &special, None).unwrap();
        let given = Given {
            name: "prompt",
            sent_as: "prompt",
            value: prompt,
        };
        let prompts = read_prompts(&given, &tokenizer, 4)?;
        Ok(prompts.into_iter().map(|prompt| prompt.ids).collect())
    }

    #[test]
    fn every_form_of_a_prompt_is_read() {
        assert_eq!(read(json!("ab")).unwrap(), [vec![2, 3]]);
        assert_eq!(read(json!([2, 3, 4])).unwrap(), [vec![2, 3, 4]]);
        assert_eq!(read(json!([2.0])).unwrap(), [vec![2]]);
        assert_eq!(read(json!(["a", "b"])).unwrap(), [vec![2], vec![3]]);
        assert_eq!(read(json!([[2], [3, 4]])).unwrap(), [vec![2], vec![3, 4]]);
    }

    #[test]
    fn other_prompts_are_invalid() {
        for prompt in [
            json!([2, "a"]),
            json!(["a", 2]),
            json!([[2], "a"]),
            json!([[2], 3]),
            json!([]),
            json!([[]]),
            json!([[2], []]),
            json!(""),
            json!([99]),
            json!([12]),
            json!([-1]),
            json!([1.5]),
            json!([1e30]),
            json!([[99]]),
            json!(5),
            json!(true),
            json!({}),
            json!([null]),
            json!([[[2]]]),
            json!(["a", "a", "a", "a", "a"]),
        ] {
            let error = read(prompt.clone()).unwrap_err();
            assert_eq!(error.code, Code::InvalidValue, "{prompt}");
            assert_eq!(error.param.as_deref(), Some("prompt"), "{prompt}");
        }
    }

    /// As SentencePiece's tokenizers do, which write `ab` as `▁ab`.
    #[test]
    fn a_space_that_the_tokenizer_adds_is_not_shown() {
        let pieces: [&[u8]; 4] = [b"", b" a", b"b", b"a"];
        let tokenizer = Tokenizer::from_pieces(&pieces, &[(0, "<bos>")], Some(0)).unwrap();
        for (ids, text, expected) in [
            (vec![0, 1, 2], "ab", vec!["", "a", "b"]),
            (vec![1, 2], "ab", vec!["a", "b"]),
            (vec![0, 1, 2], " ab", vec!["", " a", "b"]),
            (vec![0, 1, 2], "<bos> ab", vec!["<bos>", " a", "b"]),
            (vec![3, 1], "a a", vec!["a", " a"]),
            (
                vec![0, 1, 2, 0, 1],
                "<bos>ab<bos> a",
                vec!["<bos>", "a", "b", "<bos>", " a"],
            ),
        ] {
            let prompt = Prompt {
                ids,
                text: Some(text.into()),
            };
            let echo = prompt.echo(&tokenizer);
            let vocabulary = tokenizer.vocabulary();
            let shown = prompt.ids.iter().enumerate().map(|(index, &id)| {
                let bytes = prompt_bytes(id, vocabulary);
                String::from_utf8(echo.shown(index, bytes).to_vec()).unwrap()
            });
            assert_eq!(shown.collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn an_id_out_of_range_is_named_with_the_range() {
        let error = read(json!([2, 99])).unwrap_err();
        assert_eq!(
            error.message,
            "`prompt` contains 99; a token id is an integer from 0 to 11"
        );
    }
}
