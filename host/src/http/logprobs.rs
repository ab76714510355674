//! `logprobs` and its relatives: what a request asks for, and the two shapes
//! that OpenAI gives the answer.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

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

/// Entries in the shape of `endpoint`, written as they are: there may be millions
/// of values.
pub(super) struct Shown<'a> {
    pub(super) entries: &'a [Entry],
    pub(super) endpoint: Endpoint,
    pub(super) vocabulary: &'a Vocabulary,
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let vocabulary = self.vocabulary;
        match self.endpoint {
            Endpoint::Chat => {
                let content = |entry| ChatEntry::new(entry, vocabulary);
                let mut shown = serializer.serialize_struct("logprobs", 2)?;
                shown.serialize_field("content", &Each(self.entries, content))?;
                shown.serialize_field("refusal", &())?;
                shown.end()
            }
            Endpoint::Completions => {
                let token = |entry: &Entry| token_text(entry.id, vocabulary);
                let logprob = |entry: &Entry| Some(finite(entry.logprobs.as_ref()?.logprob));
                let listed = |entry| Listed::new(entry, vocabulary);
                let offset = |entry: &Entry| entry.offset;
                let mut shown = serializer.serialize_struct("logprobs", 4)?;
                shown.serialize_field("tokens", &Each(self.entries, token))?;
                shown.serialize_field("token_logprobs", &Each(self.entries, logprob))?;
                shown.serialize_field("top_logprobs", &Each(self.entries, listed))?;
                shown.serialize_field("text_offset", &Each(self.entries, offset))?;
                shown.end()
            }
        }
    }
}

/// A list of what a function makes of each entry, one after the other.
struct Each<'a, F>(&'a [Entry], F);

impl<'a, T: Serialize, F: Fn(&'a Entry) -> T> Serialize for Each<'a, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(&self.1))
    }
}

#[derive(Serialize)]
struct ChatEntry<'a> {
    #[serde(flatten)]
    token: ChatToken<'a>,
    top_logprobs: Vec<ChatToken<'a>>,
}

#[derive(Serialize)]
struct ChatToken<'a> {
    token: Cow<'a, str>,
    logprob: f64,
    bytes: &'a [u8],
}

impl<'a> ChatEntry<'a> {
    fn new(entry: &'a Entry, vocabulary: &'a Vocabulary) -> Self {
        let token = |id: TokenId, logprob: f64| ChatToken {
            token: token_text(id, vocabulary),
            logprob: finite(logprob),
            bytes: vocabulary.token_bytes(id),
        };
        let (logprob, top) = match &entry.logprobs {
            Some(found) => (found.logprob, found.top.as_slice()),
            None => (f64::NEG_INFINITY, [].as_slice()),
        };
        Self {
            token: token(entry.id, logprob),
            top_logprobs: top
                .iter()
                .map(|&(id, logprob)| token(id, logprob))
                .collect(),
        }
    }
}

/// The tokens that a position lists, by their texts.
struct Listed<'a>(Vec<(Cow<'a, str>, f64)>);

impl<'a> Listed<'a> {
    /// The token itself is always there; of two tokens with the same text the
    /// likelier one is.
    fn new(entry: &'a Entry, vocabulary: &'a Vocabulary) -> Option<Self> {
        let found = entry.logprobs.as_ref()?;
        let own = (entry.id, found.logprob);
        let mut listed: Vec<(Cow<str>, f64)> = Vec::with_capacity(found.top.len() + 1);
        for &(id, logprob) in found.top.iter().chain([&own]) {
            let text = token_text(id, vocabulary);
            if listed.iter().all(|(other, _)| *other != text) {
                listed.push((text, finite(logprob)));
            }
        }
        Some(Self(listed))
    }
}

impl Serialize for Listed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

fn finite(logprob: f64) -> f64 {
    logprob.max(NEVER)
}

/// A token as text: its name if it is special, and its bytes in hexadecimal
/// where they are no text of their own.
fn token_text(id: TokenId, vocabulary: &Vocabulary) -> Cow<'_, str> {
    let bytes = vocabulary.token_bytes(id);
    if bytes.is_empty() {
        return vocabulary.special_name(id).unwrap_or_default().into();
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes
            .iter()
            .fold("bytes:".to_owned(), |text, byte| {
                format!("{text}\\x{byte:02x}")
            })
            .into(),
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
    use serde_json::{Value, json};

    use super::*;

    fn body(entries: &[Entry], endpoint: Endpoint, vocabulary: &Vocabulary) -> Value {
        json!(Shown {
            entries,
            endpoint,
            vocabulary,
        })
    }

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
