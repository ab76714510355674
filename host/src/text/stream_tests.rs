#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn stream(pieces: &[&[u8]], stop: &[&str], min_tokens: usize) -> TextStream {
    let vocabulary = Vocabulary::new(pieces, Vec::new());
    let stop = StopStrings::new(stop.iter().map(ToString::to_string).collect()).unwrap();
    TextStream::new(Arc::new(vocabulary), Arc::new(stop), min_tokens)
}

/// What a whole sequence showed.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    deltas: Vec<String>,
    n_tokens: usize,
    stopped: Option<usize>,
}

impl Shown {
    fn text(&self) -> String {
        self.deltas.concat()
    }
}

fn run(mut stream: TextStream, ids: impl IntoIterator<Item = u32>) -> Shown {
    let mut deltas: Vec<Delta> = ids.into_iter().map(|id| stream.push(id)).collect();
    deltas.push(stream.finish());
    let n_tokens = deltas.iter().map(|delta| delta.n_tokens).sum();
    assert_eq!(n_tokens, stream.n_tokens());
    let stops: Vec<usize> = deltas.iter().filter_map(|delta| delta.stopped).collect();
    assert!(stops.len() <= 1);
    assert_eq!(stops.first().copied(), stream.stopped());
    Shown {
        deltas: deltas.into_iter().map(|delta| delta.text).collect(),
        n_tokens,
        stopped: stream.stopped(),
    }
}

/// Pushes each piece once, in order.
fn run_pieces(pieces: &[&str], stop: &[&str]) -> Shown {
    let bytes: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
    run(stream(&bytes, stop, 0), 0..pieces.len() as u32)
}

/// The twelve pieces of the scripted model.
const PIECES: [&[u8]; 12] = [
    b"",
    b"",
    b"a",
    b"b",
    b"c",
    b" ",
    b"\n",
    b"d",
    b"\xF0\x9F",
    b"\x98\x80",
    b"\xE3",
    b"\x81\x82",
];

#[test]
fn shows_nothing_of_a_stop_string_over_many_tokens() {
    let shown = run_pieces(&["ABC", "DEF", "G", "HI", "J"], &["DEFGHIJ"]);
    assert_eq!(shown.deltas, ["ABC", "", "", "", "", ""]);
    assert_eq!((shown.stopped, shown.n_tokens), (Some(0), 1));
}

#[test]
fn the_space_before_a_stop_string_stays_and_its_token_counts() {
    let shown = run_pieces(&[" L", " M", " N", " O", " P", " Q", " R"], &["O P Q"]);
    assert_eq!(shown.text(), " L M N ");
    assert_eq!((shown.stopped, shown.n_tokens), (Some(0), 4));
}

#[test]
fn the_shorter_of_two_stop_strings_ends_first() {
    let stop = [">>>UPDATED", ">>>UPDATED\n"];
    let shown = run_pieces(&["x", ">>>UPD", "ATED", "\n"], &stop);
    assert_eq!(shown.text(), "x");
    assert_eq!((shown.stopped, shown.n_tokens), (Some(0), 1));
}

#[test]
fn of_stop_strings_that_end_together_the_longest_is_cut() {
    let shown = run_pieces(&["x", "end", "ing"], &["ing", "ending"]);
    assert_eq!((shown.text().as_str(), shown.stopped), ("x", Some(1)));
}

#[test]
fn a_token_inside_the_stop_string_does_not_count() {
    let shown = run_pieces(&["a", "b", "I"], &["I"]);
    assert_eq!(shown.text(), "ab");
    assert_eq!((shown.stopped, shown.n_tokens), (Some(0), 2));
}

#[test]
fn a_stop_string_may_begin_and_end_inside_a_token() {
    let shown = run_pieces(&["one STOP two", "three"], &["STOP"]);
    assert_eq!(shown.text(), "one ");
    assert_eq!((shown.stopped, shown.n_tokens), (Some(0), 1));
}

#[test]
fn a_stop_string_may_begin_inside_another_attempt() {
    let shown = run_pieces(&["a", "a", "a", "b", "c"], &["aab"]);
    assert_eq!(shown.deltas, ["", "", "a", "", "", ""]);
    assert_eq!((shown.stopped, shown.n_tokens), (Some(0), 1));
}

#[test]
fn held_text_is_shown_at_the_end() {
    let shown = run_pieces(&["ABC", "DEF", "G"], &["DEFGHIJ"]);
    assert_eq!(shown.deltas, ["ABC", "", "", "DEFG"]);
    assert_eq!((shown.stopped, shown.n_tokens), (None, 3));
}

#[test]
fn a_stop_string_that_never_comes_changes_nothing() {
    let shown = run(stream(&PIECES, &["zz"], 0), [2]);
    assert_eq!(shown.text(), "a");
    assert_eq!((shown.stopped, shown.n_tokens), (None, 1));
}

#[test]
fn no_token_at_all_is_an_empty_text() {
    let shown = run(stream(&PIECES, &[], 0), []);
    assert_eq!(shown.text(), "");
    assert_eq!((shown.stopped, shown.n_tokens), (None, 0));
}

#[test]
fn a_split_character_counts_both_tokens_when_it_is_whole() {
    let mut stream = stream(&PIECES, &[], 0);
    assert_eq!(stream.push(8), Delta::default());
    let delta = stream.push(9);
    assert_eq!((delta.text.as_str(), delta.n_tokens), ("\u{1F600}", 2));
    assert_eq!(stream.push(2).text, "a");
}

#[test]
fn a_lone_continuation_byte_is_replaced() {
    let shown = run(stream(&[b"\x80", b"a"], &[], 0), [0, 1]);
    assert_eq!(shown.deltas, ["\u{FFFD}", "a", ""]);
    assert_eq!(shown.n_tokens, 2);
}

#[test]
fn an_incomplete_character_at_the_end_is_replaced_once() {
    let shown = run(stream(&PIECES, &[], 0), [2, 8]);
    assert_eq!(shown.deltas, ["a", "", "\u{FFFD}"]);
    assert_eq!(shown.n_tokens, 2);
}

#[test]
fn stop_strings_span_characters_that_span_tokens() {
    // a 😀 あ b: the stop string begins in the middle of nothing and ends in b.
    let shown = run(
        stream(&PIECES, &["\u{1F600}\u{3042}b"], 0),
        [2, 8, 9, 10, 11, 3, 4],
    );
    assert_eq!(shown.text(), "a");
    assert_eq!((shown.stopped, shown.n_tokens), (Some(0), 1));
}

#[test]
fn a_token_that_ends_a_character_and_begins_the_stop_string_counts() {
    let shown = run(stream(&[b"\xE3", b"\x81\x82STOP"], &["STOP"], 0), [0, 1]);
    assert_eq!(shown.text(), "\u{3042}");
    assert_eq!((shown.stopped, shown.n_tokens), (Some(0), 2));
}

#[test]
fn a_broken_character_before_a_stop_string_is_shown_and_its_token_counts() {
    let shown = run(stream(&[b"\xE3", b"STOP"], &["STOP"], 0), [0, 1]);
    assert_eq!(shown.text(), "\u{FFFD}");
    assert_eq!((shown.stopped, shown.n_tokens), (Some(0), 1));
}

#[test]
fn a_token_without_bytes_counts_before_the_stop_string_only() {
    let pieces: [&[u8]; 4] = [b"a", b"", b"ST", b"OP"];
    let before = run(stream(&pieces, &["STOP"], 0), [0, 1, 2, 3]);
    assert_eq!((before.text().as_str(), before.n_tokens), ("a", 2));
    let inside = run(stream(&pieces, &["STOP"], 0), [0, 2, 1, 3]);
    assert_eq!((inside.text().as_str(), inside.n_tokens), ("a", 1));
    let inside_character = run(
        stream(&[b"\xE3", b"", b"\x81\x82"], &["\u{3042}"], 0),
        [0, 1, 2],
    );
    assert_eq!(inside_character.n_tokens, 0);
}

#[test]
fn special_tokens_show_nothing() {
    let shown = run(stream(&PIECES, &[], 0), [2, 0, 3, 1, 400]);
    assert_eq!((shown.text().as_str(), shown.n_tokens), ("ab", 5));
}

#[test]
fn nothing_follows_a_stop_string_or_the_end() {
    let mut stream = stream(&PIECES, &["b"], 0);
    assert_eq!(stream.push(3).stopped, Some(0));
    assert_eq!(stream.push(2), Delta::default());
    assert_eq!(stream.finish(), Delta::default());
    assert_eq!(stream.n_tokens(), 0);
}

#[test]
fn a_stop_string_before_min_tokens_is_text() {
    let stop = ["b"];
    let early = run(stream(&PIECES, &stop, 3), [2, 3, 4, 3, 7]);
    assert_eq!(
        (early.text().as_str(), early.stopped, early.n_tokens),
        ("abc", Some(0), 3)
    );
    let exact = run(stream(&PIECES, &stop, 2), [2, 3, 4]);
    assert_eq!(
        (exact.text().as_str(), exact.stopped, exact.n_tokens),
        ("a", Some(0), 1)
    );
}

#[test]
fn a_stop_string_begun_before_min_tokens_and_completed_after_counts() {
    let shown = run(stream(&PIECES, &["abcd"], 4), [2, 3, 4, 7]);
    assert_eq!((shown.text().as_str(), shown.stopped), ("", Some(0)));
    // The shorter string is over before min_tokens, the longer one is not.
    let longer = run(stream(&PIECES, &["ab", "abc"], 3), [2, 3, 4]);
    assert_eq!((longer.text().as_str(), longer.stopped), ("", Some(1)));
}

/// The same by another way: the whole text first, then the stop string, by
/// comparing at every position.
fn searched(pieces: &[Vec<u8>], stop: &[String]) -> (String, Option<usize>) {
    let text = String::from_utf8_lossy(&pieces.concat()).into_owned();
    for end in 1..=text.len() {
        let before = &text.as_bytes()[..end];
        let ending = |string: &&String| before.ends_with(string.as_bytes());
        if let Some(longest) = stop.iter().filter(ending).map(String::len).max() {
            let index = stop
                .iter()
                .position(|string| string.len() == longest && before.ends_with(string.as_bytes()));
            return (text[..end - longest].to_string(), index);
        }
    }
    (text, None)
}

/// How many tokens begin with a byte of a shown character.
fn counted(pieces: &[Vec<u8>], shown: &str) -> usize {
    let bytes = pieces.concat();
    let starts = pieces.iter().scan(0, |at, piece| {
        let start = *at;
        *at += piece.len();
        Some(start)
    });
    starts
        .filter(|&start| character_start(&bytes, start) < shown.len())
        .count()
}

/// Where, in the lossy text, the character begins that holds byte `at`.
fn character_start(bytes: &[u8], at: usize) -> usize {
    let (mut seen, mut text_at) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if at < seen + character.len_utf8() {
                return text_at;
            }
            seen += character.len_utf8();
            text_at += character.len_utf8();
        }
        if !chunk.invalid().is_empty() {
            if at < seen + chunk.invalid().len() {
                return text_at;
            }
            seen += chunk.invalid().len();
            text_at += 3;
        }
    }
    text_at
}

fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let piece = prop::sample::select(vec![
        b"".as_slice(),
        b"a",
        b"b",
        b"ab",
        b"ba",
        b"aab",
        b" a",
        b"\xF0\x9F",
        b"\x98\x80",
        b"\xE3",
        b"\x81\x82",
        b"\x82a\xE3",
        b"\x80",
    ]);
    prop::collection::vec(piece.prop_map(<[u8]>::to_vec), 0..16)
}

fn stop_strings() -> impl Strategy<Value = Vec<String>> {
    let string = prop::collection::vec(
        prop::sample::select(vec!['a', 'b', ' ', '\u{1F600}', '\u{3042}', '\u{FFFD}']),
        1..5,
    );
    prop::collection::vec(string.prop_map(String::from_iter), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn streamed_text_equals_a_search_of_the_whole(pieces in pieces(), stop in stop_strings()) {
        let vocabulary = Arc::new(Vocabulary::new(&pieces, Vec::new()));
        let strings = Arc::new(StopStrings::new(stop.clone()).unwrap());
        let shown = run(TextStream::new(vocabulary, strings, 0), 0..pieces.len() as u32);
        let (text, stopped) = searched(&pieces, &stop);
        prop_assert_eq!(shown.text(), text.clone());
        prop_assert_eq!(shown.stopped, stopped);
        if pieces.iter().all(|piece| !piece.is_empty()) {
            prop_assert_eq!(shown.n_tokens, counted(&pieces, &text));
        }
    }

    #[test]
    fn what_is_shown_is_a_beginning_of_the_final_text(pieces in pieces(), stop in stop_strings()) {
        let (text, _) = searched(&pieces, &stop);
        let vocabulary = Arc::new(Vocabulary::new(&pieces, Vec::new()));
        let strings = Arc::new(StopStrings::new(stop).unwrap());
        let mut stream = TextStream::new(vocabulary, strings, 0);
        let mut shown = String::new();
        for id in 0..pieces.len() as u32 {
            let delta = stream.push(id);
            shown.push_str(&delta.text);
            prop_assert!(text.starts_with(&shown));
            // Everything shown belongs to tokens that are counted.
            let bytes = pieces[..stream.n_tokens()].concat();
            prop_assert!(shown.len() <= String::from_utf8_lossy(&bytes).len());
        }
    }

    #[test]
    fn without_stop_strings_text_is_the_lossy_whole(ids in prop::collection::vec(0..12_u32, 0..40)) {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| PIECES[id as usize].to_vec()).collect();
        let shown = run(stream(&PIECES, &[], 0), ids.iter().copied());
        prop_assert_eq!(shown.text(), String::from_utf8_lossy(&bytes));
        prop_assert_eq!(shown.n_tokens, ids.len());
    }
}
