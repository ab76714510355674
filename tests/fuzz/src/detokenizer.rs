//! Tokens to text: what is shown piece by piece is the whole text, up to the
//! first stop string.

use std::sync::Arc;

use sluice::text::{Detokenizer, MAX_STOP_STRINGS, StopStrings, TextStream, Vocabulary};

use crate::input::Input;

const MOST_PIECES: usize = 16;
const LONGEST_PIECE: usize = 8;
const MOST_TOKENS: usize = 200;

/// Stop strings, the pieces of a vocabulary, then tokens.
pub fn detokenizer(bytes: &[u8]) -> bool {
    let mut input = Input::new(bytes);
    let n_stops = input.below(MAX_STOP_STRINGS.min(4) + 1);
    let stops: Vec<String> = (0..n_stops)
        .map(|_| {
            let length = input.below(LONGEST_PIECE);
            String::from_utf8_lossy(input.bytes(length)).into_owned()
        })
        .collect();
    let min_tokens = input.below(8);
    let n_pieces = input.below(MOST_PIECES) + 1;
    let pieces: Vec<&[u8]> = (0..n_pieces)
        .map(|_| {
            let length = input.below(LONGEST_PIECE);
            input.bytes(length)
        })
        .collect();
    let ids: Vec<usize> = input
        .rest()
        .iter()
        .take(MOST_TOKENS)
        // One more than there are: an id out of range has no bytes.
        .map(|byte| usize::from(*byte) % (n_pieces + 1))
        .collect();
    let tokens: Vec<&[u8]> = ids
        .iter()
        .map(|&id| pieces.get(id).copied().unwrap_or_default())
        .collect();

    pieces_join(&tokens);
    let Ok(stop) = StopStrings::new(stops.clone()) else {
        return false;
    };
    let vocabulary = Arc::new(Vocabulary::new(&pieces, Vec::new()));
    let mut stream = TextStream::new(vocabulary, Arc::new(stop), min_tokens);
    let (mut shown, mut n_counted) = (String::new(), 0);
    for &id in &ids {
        let delta = stream.push(id as u32);
        shown.push_str(&delta.text);
        n_counted += delta.n_tokens;
    }
    let last = stream.finish();
    shown.push_str(&last.text);
    n_counted += last.n_tokens;

    let expected = Expected::of(&tokens, &stops, min_tokens);
    assert_eq!(shown, expected.text);
    assert_eq!(stream.stopped(), expected.stopped);
    assert_eq!(stream.n_tokens(), n_counted);
    match expected.stopped {
        None => assert_eq!(n_counted, tokens.len()),
        Some(_) => assert!(n_counted <= tokens.len()),
    }
    true
}

/// However bytes are cut, their text is that of all of them.
fn pieces_join(pieces: &[&[u8]]) {
    let mut detokenizer = Detokenizer::new();
    let mut text = String::new();
    for piece in pieces {
        detokenizer.push(piece, &mut text);
    }
    detokenizer.finish(&mut text);
    assert_eq!(text, String::from_utf8_lossy(&pieces.concat()));
    assert!(!detokenizer.has_pending());
}

/// The text by its definition, from all bytes at once.
struct Expected {
    text: String,
    stopped: Option<usize>,
}

impl Expected {
    fn of(tokens: &[&[u8]], stops: &[String], min_tokens: usize) -> Self {
        let whole = String::from_utf8_lossy(&tokens.concat()).into_owned();
        // How much of it is known after each token, and at the end.
        let mut known: Vec<usize> = (1..=tokens.len())
            .map(|n| known_bytes(&tokens[..n].concat()))
            .collect();
        known.push(whole.len());
        let n_tokens_at = |end: usize| {
            let after = known.iter().position(|&bytes| bytes >= end);
            after.map_or(tokens.len(), |index| (index + 1).min(tokens.len()))
        };
        for end in 1..=whole.len() {
            if n_tokens_at(end) < min_tokens {
                continue;
            }
            let ends_here = |stop: &&(usize, &String)| {
                !stop.1.is_empty() && whole.as_bytes()[..end].ends_with(stop.1.as_bytes())
            };
            // Of equal ones the first.
            let found: Vec<_> = stops.iter().enumerate().collect();
            let longest = found
                .iter()
                .filter(ends_here)
                .rev()
                .max_by_key(|stop| stop.1.len());
            if let Some(&(index, stop)) = longest {
                return Self {
                    text: whole[..end - stop.len()].to_owned(),
                    stopped: Some(index),
                };
            }
        }
        Self {
            text: whole,
            stopped: None,
        }
    }
}

/// Bytes of text that no further byte can change.
fn known_bytes(bytes: &[u8]) -> usize {
    let is_incomplete = |tail: &[u8]| {
        std::str::from_utf8(tail)
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    let held = (1..=bytes.len().min(3))
        .rev()
        .find(|&n| is_incomplete(&bytes[bytes.len() - n..]))
        .unwrap_or(0);
    String::from_utf8_lossy(&bytes[..bytes.len() - held]).len()
}
