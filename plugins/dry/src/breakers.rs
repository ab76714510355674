//! Tokens that no repeat reaches across.

use std::collections::HashMap;

use sluice_plugin::TokenId;

/// The sequences that make a token a breaker, and what is known of tokens
/// seen so far.
#[derive(Debug)]
pub(crate) struct Breakers {
    sequences: Vec<Vec<u8>>,
    known: HashMap<TokenId, bool>,
}

impl Breakers {
    /// None of `sequences` is empty.
    pub(crate) fn new(sequences: &[String]) -> Self {
        Self {
            sequences: sequences
                .iter()
                .map(|each| each.clone().into_bytes())
                .collect(),
            known: HashMap::new(),
        }
    }

    /// Whether the token's bytes contain a sequence. Asks for them once.
    pub(crate) fn has(&mut self, id: TokenId, bytes: impl Fn(TokenId) -> Vec<u8>) -> bool {
        let sequences = &self.sequences;
        *self.known.entry(id).or_insert_with(|| {
            let bytes = bytes(id);
            let within =
                |sequence: &Vec<u8>| bytes.windows(sequence.len()).any(|part| part == sequence);
            sequences.iter().any(within)
        })
    }

    /// Whether a token that was asked about is a breaker.
    pub(crate) fn is_known(&self, id: TokenId) -> bool {
        self.known.get(&id).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::Breakers;

    #[test]
    fn a_token_that_contains_a_sequence_is_one() {
        let texts = ["\n", " a:", "a", "", "é"];
        let sequences = ["\n", ":", "\u{e9}"].map(str::to_owned);
        let mut breakers = Breakers::new(&sequences);
        let found: Vec<_> = (0..5)
            .map(|id| breakers.has(id, |id| texts[id as usize].as_bytes().to_vec()))
            .collect();
        assert_eq!(found, [true, true, false, false, true]);
    }

    #[test]
    fn bytes_are_asked_for_once() {
        let asked = Cell::new(0);
        let mut breakers = Breakers::new(&["\n".to_owned()]);
        for _ in 0..3 {
            breakers.has(7, |_| {
                asked.set(asked.get() + 1);
                b"x\ny".to_vec()
            });
        }
        assert_eq!(
            (asked.get(), breakers.is_known(7), breakers.is_known(8)),
            (1, true, false)
        );
    }
}
