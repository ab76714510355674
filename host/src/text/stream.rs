//! The text of one sequence, token by token.

use std::collections::VecDeque;
use std::sync::Arc;

use super::stop::Place;
use super::{Detokenizer, StopStrings, Vocabulary};

/// What one token changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Text to show now; often empty. What was shown is never taken back.
    pub text: String,
    /// That many further tokens, in the order in which they were pushed, are
    /// now known to count: their logprobs may be shown with this text.
    pub n_tokens: usize,
    /// The index of the stop string that ended the sequence.
    pub stopped: Option<usize>,
}

/// Turns a sequence's tokens into text, and ends it at a stop string.
///
/// - The stop string whose match ends first wins; of those that end together,
///   the longest. The text before it is shown, it is not. It may span tokens
///   and characters, and begin or end inside a token.
/// - While the end of the text may still become a stop string, and while a
///   character is incomplete, it is held back.
/// - A match completed before `min_tokens` tokens were pushed is ordinary
///   text; one that begins earlier and is completed later counts.
/// - A token counts when one of its bytes is shown, or when it has no bytes
///   and comes before the stop string.
#[derive(Clone, Debug)]
pub struct TextStream {
    vocabulary: Arc<Vocabulary>,
    stop: Arc<StopStrings>,
    min_tokens: usize,
    detokenizer: Detokenizer,
    /// Where the decoded text stands among the stop strings.
    place: Place,
    /// Text that is decoded but not shown.
    held: String,
    /// Bytes of text shown so far.
    n_shown_bytes: usize,
    n_pushed: usize,
    n_counted: usize,
    /// For each token not yet counted, how many bytes of text must be shown
    /// for it to count. Never descending.
    uncounted: VecDeque<usize>,
    stopped: Option<usize>,
    finished: bool,
}

impl TextStream {
    pub fn new(vocabulary: Arc<Vocabulary>, stop: Arc<StopStrings>, min_tokens: usize) -> Self {
        Self {
            vocabulary,
            stop,
            min_tokens,
            detokenizer: Detokenizer::new(),
            place: Place::default(),
            held: String::new(),
            n_shown_bytes: 0,
            n_pushed: 0,
            n_counted: 0,
            uncounted: VecDeque::new(),
            stopped: None,
            finished: false,
        }
    }

    /// Takes the next generated token. An id that ends the sequence is not
    /// pushed: it is neither shown nor counted. After a stop string or
    /// [`finish`](Self::finish) nothing more happens.
    pub fn push(&mut self, id: u32) -> Delta {
        if self.is_over() {
            return Delta::default();
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let bytes = vocabulary.token_bytes(id);
        self.n_pushed += 1;
        self.uncounted.push_back(self.bytes_until_counted(bytes));
        self.advance(|detokenizer, text| detokenizer.push(bytes, text))
    }

    /// Ends the sequence and shows what was held back. An incomplete character
    /// becomes U+FFFD; should that complete a stop string, it still ends the
    /// text.
    pub fn finish(&mut self) -> Delta {
        if self.is_over() {
            return Delta::default();
        }
        self.finished = true;
        let mut delta = self.advance(Detokenizer::finish);
        if delta.stopped.is_none() {
            delta.text.push_str(&self.show(self.held.len()));
            delta.n_tokens += self.count_up_to(usize::MAX);
        }
        delta
    }

    /// Tokens counted so far; at the end, the completion tokens.
    pub fn n_tokens(&self) -> usize {
        self.n_counted
    }

    /// The index of the stop string that ended the sequence.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    fn is_over(&self) -> bool {
        self.finished || self.stopped.is_some()
    }

    /// Bytes of text that must be shown for the next token to count: up to
    /// and with the first byte of the character that its own first byte
    /// belongs to, or nothing beyond the text before it if it has no bytes.
    fn bytes_until_counted(&self, bytes: &[u8]) -> usize {
        let decoded = self.n_shown_bytes + self.held.len();
        let in_character = self.detokenizer.has_pending();
        match bytes.first() {
            None => decoded + usize::from(in_character),
            Some(&byte) if in_character && !self.detokenizer.continues_with(byte) => {
                decoded + char::REPLACEMENT_CHARACTER.len_utf8() + 1
            }
            Some(_) => decoded + 1,
        }
    }

    /// Decodes, then shows all text that cannot become a stop string.
    fn advance(&mut self, decode: impl FnOnce(&mut Detokenizer, &mut String)) -> Delta {
        let mut scanned = self.held.len();
        decode(&mut self.detokenizer, &mut self.held);
        while let Some(&byte) = self.held.as_bytes().get(scanned) {
            scanned += 1;
            self.place = self.stop.step(self.place, byte);
            if let Some((index, n_bytes)) = self.stop.found(self.place)
                && self.n_pushed >= self.min_tokens
            {
                return self.end_at(index, scanned - n_bytes);
            }
        }
        let held = self.stop.held_bytes(self.place);
        let text = self.show(self.held.len() - held);
        Delta {
            text,
            n_tokens: self.count_up_to(self.n_shown_bytes),
            stopped: None,
        }
    }

    /// Ends the sequence at a stop string that begins `start` bytes into the
    /// held text.
    fn end_at(&mut self, index: usize, start: usize) -> Delta {
        let text = self.show(start);
        self.held.clear();
        let n_tokens = self.count_up_to(self.n_shown_bytes);
        self.uncounted.clear();
        self.stopped = Some(index);
        Delta {
            text,
            n_tokens,
            stopped: self.stopped,
        }
    }

    /// Takes the first bytes of the held text.
    fn show(&mut self, n_bytes: usize) -> String {
        let rest = self.held.split_off(n_bytes);
        self.n_shown_bytes += n_bytes;
        std::mem::replace(&mut self.held, rest)
    }

    fn count_up_to(&mut self, n_bytes: usize) -> usize {
        let n_tokens = self
            .uncounted
            .iter()
            .take_while(|&&need| need <= n_bytes)
            .count();
        self.uncounted.drain(..n_tokens);
        self.n_counted += n_tokens;
        n_tokens
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
