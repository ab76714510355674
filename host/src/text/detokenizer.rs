//! Bytes to text, as they come.

use std::str;

/// Turns a stream of bytes into text without ever showing half a character.
///
/// An incomplete character is held back until it completes. Bytes that cannot
/// become a character are U+FFFD, once per maximal subpart of an ill-formed
/// sequence (Unicode 16, section 3.9, as [`String::from_utf8_lossy`] has it).
/// The text of all pushes and the final [`finish`](Self::finish) joined equals
/// `from_utf8_lossy` of all bytes joined, however they were split.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// The bytes of a character that is not complete: at most three.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends what `bytes` complete to `text`.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        if bytes.is_empty() {
            return;
        }
        self.pending.extend_from_slice(bytes);
        let mut seen = 0;
        let mut held = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            seen += chunk.valid().len() + chunk.invalid().len();
            if chunk.invalid().is_empty() {
                continue;
            }
            if seen == self.pending.len() && is_incomplete(chunk.invalid()) {
                held = chunk.invalid().len();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..seen - held);
    }

    /// Ends the stream: an incomplete character becomes U+FFFD, once.
    pub fn finish(&mut self, text: &mut String) {
        if self.has_pending() {
            self.pending.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Whether an incomplete character is held back.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether `byte` would belong to the character that is held back.
    pub(super) fn continues_with(&self, byte: u8) -> bool {
        let mut character = [0; 4];
        let Some(room) = character.get_mut(..=self.pending.len()) else {
            return false;
        };
        let (start, next) = room.split_at_mut(self.pending.len());
        start.copy_from_slice(&self.pending);
        next[0] = byte;
        self.has_pending() && (str::from_utf8(room).is_ok() || is_incomplete(room))
    }
}

/// Whether more bytes could still make this a character.
fn is_incomplete(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(pieces: &[&[u8]]) -> (Vec<String>, String) {
        let mut detokenizer = Detokenizer::new();
        let shown = pieces
            .iter()
            .map(|piece| {
                let mut text = String::new();
                detokenizer.push(piece, &mut text);
                text
            })
            .collect();
        let mut tail = String::new();
        detokenizer.finish(&mut tail);
        (shown, tail)
    }

    fn joined(pieces: &[&[u8]]) -> String {
        let (shown, tail) = texts(pieces);
        shown.concat() + &tail
    }

    #[test]
    fn a_character_over_two_tokens_waits_for_the_second() {
        let (shown, tail) = texts(&[b"\xF0\x9F", b"\x98\x80", b"a"]);
        assert_eq!(shown, ["", "\u{1F600}", "a"]);
        assert_eq!(tail, "");
    }

    #[test]
    fn text_before_an_incomplete_character_is_shown_at_once() {
        let (shown, _) = texts(&[b" \xE3", b"\x81\x82"]);
        assert_eq!(shown, [" ", "\u{3042}"]);
    }

    #[test]
    fn an_incomplete_tail_is_replaced_once() {
        for tail in [b"\xF0".as_slice(), b"\xF0\x9F", b"\xF0\x9F\x98"] {
            assert_eq!(joined(&[b"a", tail]), "a\u{FFFD}", "{tail:x?}");
        }
    }

    #[test]
    fn invalid_bytes_are_replaced_per_maximal_subpart() {
        // Table 3-8 of the Unicode standard: 61 F1 80 80 E1 80 C2 62 80 63 80
        // BF 64 becomes a, three replacements, b, one, c, two, d.
        let expected = "a\u{FFFD}\u{FFFD}\u{FFFD}b\u{FFFD}c\u{FFFD}\u{FFFD}d";
        let bytes = b"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64";
        assert_eq!(joined(&[bytes]), expected);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(joined(&single), expected);
    }

    #[test]
    fn knows_what_continues_a_character() {
        let mut detokenizer = Detokenizer::new();
        let mut text = String::new();
        assert!(!detokenizer.continues_with(0x80));
        detokenizer.push(b"\xE0", &mut text);
        assert!(detokenizer.continues_with(0xA0));
        assert!(!detokenizer.continues_with(0x80), "overlong");
        assert!(!detokenizer.continues_with(b'a'));
        detokenizer.push(b"\xA0", &mut text);
        assert!(detokenizer.continues_with(0x80));
    }

    /// Bytes that often make and break characters.
    fn awkward_bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            any::<u8>(),
            prop::sample::select(b"\x80\xBF\xC2\xE0\xE3\xED\xF0\xF4\x9F\x98\xA0a".to_vec()),
        ];
        let character = any::<char>().prop_map(|c| c.to_string().into_bytes());
        prop::collection::vec(prop_oneof![byte.prop_map(|b| vec![b]), character], 0..40)
            .prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_text(
            bytes in awkward_bytes(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(joined(&pieces), String::from_utf8_lossy(&bytes));
        }
    }
}
