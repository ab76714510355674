//! Grammars of every kind, and texts that follow them.

use std::sync::OnceLock;

use serde_json::{Value, json};
use sluice_plugin::TokenId;

use crate::input::Input;
use crate::matcher::Matcher;
use crate::source::Source;
use crate::tokens::Tokens;

const END: TokenId = 0;
const MOST_TOKENS: usize = 40;

/// All single bytes, and words of JSON and of text that span what a lexer cuts.
const WORDS: [&[u8]; 20] = [
    b"",
    b"{\"",
    b"\": ",
    b"\", \"",
    b"\"}",
    b"true",
    b"null",
    b"12",
    b"-1",
    b".5",
    b"[]",
    b"{}",
    b"ab",
    b"the",
    b" a",
    b"\xc3\xa9",
    b"\xf0\x9f",
    b"\x98\x80",
    b"2024-01-01",
    b"]}",
];

fn tokens() -> Option<&'static Tokens> {
    static TOKENS: OnceLock<Option<Tokens>> = OnceLock::new();
    let made = TOKENS.get_or_init(|| {
        let bytes: Vec<u8> = (0..=255).collect();
        let words: Vec<&[u8]> = WORDS.into_iter().chain(bytes.chunks(1)).collect();
        let mut offsets = vec![0];
        let mut end = 0;
        for word in &words {
            end += word.len() as u32;
            offsets.push(end);
        }
        Tokens::new(&offsets, &words.concat()).ok()
    });
    made.as_ref()
}

/// A kind of grammar, the grammar and, after a zero byte, which of the allowed
/// tokens comes next, again and again. A grammar is refused or can be followed,
/// and however its text is cut over calls, the same may follow.
pub fn grammar(bytes: &[u8]) -> bool {
    let mut input = Input::new(bytes);
    let kind = input.below(4);
    let rest = input.rest();
    let cut = rest.iter().position(|&byte| byte == 0);
    let (text, choices) = rest.split_at(cut.unwrap_or(rest.len()));
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    let Some((source, tokens)) = source(kind, text).zip(tokens()) else {
        return false;
    };
    let open = || Matcher::new(tokens, &source, vec![END]);
    let mut matcher = match open() {
        Ok(matcher) => matcher,
        Err(error) => {
            assert!(!error.is_empty());
            return false;
        }
    };
    let mut accepted: Vec<TokenId> = Vec::new();
    for &choice in choices.iter().skip(1).take(MOST_TOKENS) {
        // What takes too long to find out is an error of that request.
        let Ok(mask) = matcher.mask() else {
            return false;
        };
        let Some(next) = nth(&mask, usize::from(choice)) else {
            return false;
        };
        if next == END {
            break;
        }
        accepted.push(next);
        let followed = matcher.accept(&[next]);
        assert_eq!(followed, Ok(()), "{next} was allowed after {accepted:?}");
    }
    let mut replay = open().ok();
    let replayed = replay
        .as_mut()
        .map(|replay| replay.accept(&accepted).and_then(|()| replay.mask()));
    assert_eq!(replayed, Some(matcher.mask()), "after {accepted:?}");
    true
}

/// The parameters, as the host would let them through.
fn source(kind: usize, text: &str) -> Option<Source> {
    let params = match kind {
        0 => {
            let schema: Value = serde_json::from_str(text).ok()?;
            (schema.is_object() || schema.is_boolean()).then(|| json!({"json_schema": schema}))?
        }
        1 if !text.is_empty() => json!({"regex": text}),
        2 if text.split('\n').all(|choice| !choice.is_empty()) => {
            json!({"choice": text.split('\n').collect::<Vec<_>>()})
        }
        3 if !text.is_empty() => json!({"lark": text}),
        _ => return None,
    };
    serde_json::from_value(params).ok()
}

/// The n-th of the ids whose bits are 1, beginning anew at the last.
fn nth(mask: &[u32], n: usize) -> Option<TokenId> {
    let ids: Vec<TokenId> = (0..mask.len() as u32 * 32)
        .filter(|&id| mask[id as usize / 32] >> (id % 32) & 1 == 1)
        .collect();
    ids.get(n % ids.len().max(1)).copied()
}
