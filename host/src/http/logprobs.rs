//! `logprobs` and its relatives: what a request asks for, and the two shapes
//! that OpenAI gives the answer.

use serde_json::{Map, Value, json};

use super::errors::{ApiError, Code};
use super::field_table::Endpoint;
use super::fields::{Fields, Given};
use crate::engine::{LogprobOptions, Logprobs, LogprobsOf, TokenId};
use crate::text::{Detokenizer, Vocabulary};

/// Most tokens that a position may list.
const MAX_TOP: i128 = 20;

/// A logprob that stands for negative infinity, which JSON does not have.
/// OpenAI's own answers do the same.
const NEVER: f64 = -9999.0;

/// A token that is shown, with its logprobs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) id: TokenId,
    /// None for the first token of a prompt.
    pub(super) logprobs: Option<Box<Logprobs>>,
    /// Characters of the answer's text before it.
    pub(super) offset: usize,
}

/// Reads `logprobs`, `top_logprobs`, `n_probs` and `logprobs_mode`. `prompt`:
/// the prompt's tokens are shown too.
pub(super) fn read(
    fields: &mut Fields,
    endpoint: Endpoint,
    prompt: bool,
) -> Result<Option<LogprobOptions>, ApiError> {
    let n_top = read_n_top(fields, endpoint)?;
    let mode = fields.take("logprobs_mode");
    let of = mode.as_ref().map(read_mode).transpose()?;
    match (n_top, mode) {
        (Some(n_top), mode) => {
            let of = of.unwrap_or_default();
            if let Some(mode) = mode.filter(|_| prompt && of == LogprobsOf::Processed) {
                return Err(conflict(
                    &mode,
                    "cannot be had of a prompt, whose rows no stage sees: leave out `echo`",
                ));
            }
            Ok(Some(LogprobOptions { n_top, of, prompt }))
        }
        (None, Some(mode)) => Err(conflict(&mode, "has no effect unless `logprobs` is set")),
        (None, None) => Ok(None),
    }
}

fn read_mode(given: &Given) -> Result<LogprobsOf, ApiError> {
    match given.value.as_str() {
        Some("raw") => Ok(LogprobsOf::Raw),
        Some("processed") => Ok(LogprobsOf::Processed),
        _ => Err(given.invalid("\"raw\" or \"processed\"")),
    }
}

fn conflict(given: &Given, why: &str) -> ApiError {
    let message = format!("`{}` {why}", given.sent_as);
    ApiError::of(Code::ConflictingFields, given.sent_as, message)
}

/// How many tokens each position lists, if logprobs are wanted at all.
fn read_n_top(fields: &mut Fields, endpoint: Endpoint) -> Result<Option<u32>, ApiError> {
    let n_probs = fields
        .integer("n_probs", 0..=MAX_TOP)?
        .filter(|&n| n > 0)
        .map(|n| n as u32);
    let own = match endpoint {
        Endpoint::Completions => fields.integer("logprobs", 0..=MAX_TOP)?.map(|n| n as u32),
        Endpoint::Chat => {
            let wanted = fields.boolean("logprobs")?.unwrap_or(false);
            let top = fields.integer("top_logprobs", 0..=MAX_TOP)?.unwrap_or(0) as u32;
            if top > 0 && !wanted {
                let message = format!(
                    "`top_logprobs` is {top}, which has no effect unless `logprobs` is true"
                );
                return Err(ApiError::of(
                    Code::ConflictingFields,
                    "top_logprobs",
                    message,
                ));
            }
            wanted.then_some(top)
        }
    };
    match (own, n_probs) {
        (Some(own), Some(n_probs)) if own != n_probs => Err(ApiError::of(
            Code::ConflictingFields,
            "n_probs",
            format!("`n_probs` is {n_probs}, but the request asks for {own} by its other name"),
        )),
        (own, n_probs) => Ok(own.or(n_probs)),
    }
}

/// The entries in the shape of `endpoint`.
pub(super) fn body(entries: &[Entry], endpoint: Endpoint, vocabulary: &Vocabulary) -> Value {
    match endpoint {
        Endpoint::Chat => {
            let content: Vec<_> = entries
                .iter()
                .map(|entry| chat_entry(entry, vocabulary))
                .collect();
            json!({"content": content, "refusal": null})
        }
        Endpoint::Completions => completions(entries, vocabulary),
    }
}

fn chat_entry(entry: &Entry, vocabulary: &Vocabulary) -> Value {
    let token = |id: TokenId, logprob: f64| {
        let bytes = vocabulary.token_bytes(id);
        json!({
            "token": token_text(id, vocabulary),
            "logprob": finite(logprob),
            "bytes": bytes,
        })
    };
    let (logprob, top) = match &entry.logprobs {
        Some(found) => (found.logprob, found.top.as_slice()),
        None => (f64::NEG_INFINITY, [].as_slice()),
    };
    let mut shown = token(entry.id, logprob);
    let top: Vec<_> = top
        .iter()
        .map(|&(id, logprob)| token(id, logprob))
        .collect();
    shown["top_logprobs"] = top.into();
    shown
}

fn completions(entries: &[Entry], vocabulary: &Vocabulary) -> Value {
    let tokens: Vec<_> = entries
        .iter()
        .map(|entry| token_text(entry.id, vocabulary))
        .collect();
    let logprobs: Vec<_> = entries
        .iter()
        .map(|entry| entry.logprobs.as_ref().map(|found| finite(found.logprob)))
        .collect();
    let top: Vec<_> = entries
        .iter()
        .map(|entry| {
            let found = entry.logprobs.as_ref()?;
            // The token itself is always there; of two tokens with the same
            // text the likelier one is.
            let mut listed = Map::new();
            let own = (entry.id, found.logprob);
            for &(id, logprob) in found.top.iter().chain([&own]) {
                listed
                    .entry(token_text(id, vocabulary))
                    .or_insert_with(|| finite(logprob).into());
            }
            Some(Value::Object(listed))
        })
        .collect();
    let offsets: Vec<_> = entries.iter().map(|entry| entry.offset).collect();
    json!({
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": top,
        "text_offset": offsets,
    })
}

fn finite(logprob: f64) -> f64 {
    logprob.max(NEVER)
}

/// A token as text: its name if it is special, and its bytes in hexadecimal
/// where they are no text of their own.
fn token_text(id: TokenId, vocabulary: &Vocabulary) -> String {
    let bytes = vocabulary.token_bytes(id);
    if bytes.is_empty() {
        return vocabulary.special_name(id).unwrap_or_default().to_owned();
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| {
            format!("{text}\\x{byte:02x}")
        }),
    }
}

/// Where in an answer's text each token begins, in characters.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    detokenizer: Detokenizer,
    n_chars: usize,
}

impl Offsets {
    /// The offset of the next token, which adds `bytes` to the text.
    pub(super) fn next(&mut self, bytes: &[u8]) -> usize {
        let offset = self.n_chars;
        let mut text = String::new();
        self.detokenizer.push(bytes, &mut text);
        self.n_chars += text.chars().count();
        offset
    }
}

/// The text of a prompt that is given as ids: special tokens by their names.
pub(super) fn prompt_text(ids: &[TokenId], vocabulary: &Vocabulary) -> String {
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new();
    for &id in ids {
        detokenizer.push(prompt_bytes(id, vocabulary), &mut text);
    }
    detokenizer.finish(&mut text);
    text
}

/// What a token of a prompt adds to the prompt's text.
pub(super) fn prompt_bytes(id: TokenId, vocabulary: &Vocabulary) -> &[u8] {
    match vocabulary.token_bytes(id) {
        [] => vocabulary.special_name(id).unwrap_or_default().as_bytes(),
        bytes => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        let pieces: [&[u8]; 5] = [b"", b"a", b"\xf0\x9f", b"\x98\x80", b"b"];
        Vocabulary::new(&pieces, vec![(0, "<eos>".into())])
    }

    fn entry(id: TokenId, logprob: f64, top: &[(TokenId, f64)], offset: usize) -> Entry {
        let logprobs = Logprobs {
            logprob,
            top: top.to_vec(),
        };
        Entry {
            id,
            logprobs: Some(Box::new(logprobs)),
            offset,
        }
    }

    #[test]
    fn chat_entries_carry_bytes_even_of_half_a_character() {
        let entries = [entry(2, -0.5, &[(2, -0.5), (0, -1.0)], 0)];
        assert_eq!(
            body(&entries, Endpoint::Chat, &vocabulary()),
            json!({"content": [{
                "token": "bytes:\\xf0\\x9f", "logprob": -0.5, "bytes": [240, 159],
                "top_logprobs": [
                    {"token": "bytes:\\xf0\\x9f", "logprob": -0.5, "bytes": [240, 159]},
                    {"token": "<eos>", "logprob": -1.0, "bytes": []},
                ],
            }], "refusal": null})
        );
    }

    #[test]
    fn completions_list_the_token_itself_beside_the_best() {
        let mut first = entry(1, 0.0, &[], 0);
        first.logprobs = None;
        let entries = [first, entry(4, f64::NEG_INFINITY, &[(1, -0.25)], 1)];
        assert_eq!(
            body(&entries, Endpoint::Completions, &vocabulary()),
            json!({
                "tokens": ["a", "b"],
                "token_logprobs": [null, -9999.0],
                "top_logprobs": [null, {"a": -0.25, "b": -9999.0}],
                "text_offset": [0, 1],
            })
        );
    }

    #[test]
    fn offsets_count_characters_and_wait_for_halves() {
        let mut offsets = Offsets::default();
        let vocabulary = vocabulary();
        let found: Vec<_> = [1, 2, 3, 4, 0, 1]
            .map(|id| offsets.next(vocabulary.token_bytes(id)))
            .into();
        assert_eq!(found, [0, 1, 1, 2, 3, 3]);
    }

    #[test]
    fn a_prompts_special_tokens_are_named() {
        assert_eq!(prompt_text(&[0, 1, 2, 3], &vocabulary()), "<eos>a😀");
        assert_eq!(prompt_text(&[1, 2], &vocabulary()), "a\u{fffd}");
    }
}
