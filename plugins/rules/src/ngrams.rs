//! No n tokens in a row occur twice. As in Hugging Face transformers'
//! `NoRepeatNGramLogitsProcessor`.

use std::collections::{HashMap, HashSet};

use sluice_plugin::TokenId;

/// What followed each run of n − 1 tokens so far.
#[derive(Debug)]
pub(crate) struct Ngrams {
    size: usize,
    seen: HashSet<Box<[TokenId]>>,
    followers: HashMap<Box<[TokenId]>, Vec<TokenId>>,
    /// The last n − 1 tokens, or fewer at the start.
    tail: Vec<TokenId>,
}

impl Ngrams {
    /// None for a size of 0, which is off.
    pub(crate) fn new(size: usize) -> Option<Self> {
        (size > 0).then(|| Self {
            size,
            seen: HashSet::new(),
            followers: HashMap::new(),
            tail: Vec::new(),
        })
    }

    pub(crate) fn push(&mut self, tokens: &[TokenId]) {
        for &id in tokens {
            self.tail.push(id);
            if self.tail.len() < self.size {
                continue;
            }
            if self.seen.insert(self.tail.clone().into()) {
                let before = self.tail[..self.size - 1].into();
                self.followers.entry(before).or_default().push(id);
            }
            self.tail.remove(0);
        }
    }

    /// The tokens that would complete a run that occurred.
    pub(crate) fn banned(&self) -> &[TokenId] {
        self.followers
            .get(&self.tail[..])
            .map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::Ngrams;

    fn banned(size: usize, tokens: &[u32]) -> Vec<u32> {
        let mut banned = Ngrams::new(size).map_or(Vec::new(), |mut ngrams| {
            ngrams.push(tokens);
            ngrams.banned().to_vec()
        });
        banned.sort_unstable();
        banned
    }

    #[test]
    fn zero_is_off() {
        assert!(Ngrams::new(0).is_none());
    }

    #[test]
    fn one_bans_every_token_seen() {
        assert_eq!(banned(1, &[]), [0; 0]);
        assert_eq!(banned(1, &[1, 3, 1]), [1, 3]);
    }

    #[test]
    fn the_third_of_a_run_of_three() {
        assert_eq!(banned(3, &[1, 2]), [0; 0]);
        assert_eq!(banned(3, &[1, 2, 3, 1]), [0; 0]);
        assert_eq!(banned(3, &[1, 2, 3, 1, 2]), [3]);
        assert_eq!(banned(3, &[1, 2, 3, 1, 2, 4, 1, 2]), [3, 4]);
    }

    #[test]
    fn runs_may_overlap() {
        assert_eq!(banned(2, &[5, 5]), [5]);
        assert_eq!(banned(3, &[5, 5, 5]), [5]);
    }

    #[test]
    fn longer_than_the_text_bans_nothing() {
        assert_eq!(banned(usize::MAX, &[1, 1, 1]), [0; 0]);
    }
}
