//! Which tokens would complete a word.

use sluice_plugin::TokenId;

pub(crate) struct Word {
    bytes: Vec<u8>,
    /// `completing[n]`: the tokens that complete the word when the text ends
    /// with its first n bytes. With none, those that hold it whole.
    completing: Vec<Vec<TokenId>>,
}

impl Word {
    /// `word` is not empty; token `i` is `bytes[offsets[i]..offsets[i + 1]]`.
    pub(crate) fn new(word: Vec<u8>, offsets: &[u32], bytes: &[u8]) -> Self {
        let mut completing = vec![Vec::new(); word.len()];
        for (id, range) in offsets.windows(2).enumerate() {
            let token = &bytes[range[0] as usize..range[1] as usize];
            if token.windows(word.len()).any(|part| part == word) {
                completing[0].push(id as TokenId);
            }
            for n in 1..word.len() {
                if token.starts_with(&word[n..]) {
                    completing[n].push(id as TokenId);
                }
            }
        }
        Self {
            bytes: word,
            completing,
        }
    }

    /// How many bytes of text may belong to an unfinished word.
    pub(crate) fn reach(&self) -> usize {
        self.bytes.len() - 1
    }

    /// The tokens after which text that ended with `tail` has the word.
    pub(crate) fn completed_by(&self, tail: &[u8]) -> impl Iterator<Item = &[TokenId]> {
        let begun = (0..self.bytes.len()).filter(|&n| tail.ends_with(&self.bytes[..n]));
        begun
            .map(|n| &self.completing[n][..])
            .filter(|ids| !ids.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::Word;

    /// What is banned for `word` after `tail`, by the tokens' text.
    fn banned<'a>(word: &str, tail: &str, tokens: &[&'a str]) -> Vec<&'a str> {
        let mut offsets = vec![0];
        for token in tokens {
            offsets.push(offsets[offsets.len() - 1] + token.len() as u32);
        }
        let word = Word::new(word.into(), &offsets, tokens.concat().as_bytes());
        let mut ids: Vec<_> = word.completed_by(tail.as_bytes()).flatten().collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(|&id| tokens[id as usize]).collect()
    }

    #[test]
    fn tokens_that_hold_the_word() {
        let tokens = ["cat", " cat", "concat!", "ca", "t", "ct", ""];
        assert_eq!(banned("cat", "", &tokens), ["cat", " cat", "concat!"]);
    }

    #[test]
    fn tokens_that_complete_it() {
        let tokens = ["t", "ts", "at", "at the", "a", "hat", "catcat"];
        assert_eq!(banned("cat", "the ca", &tokens), ["t", "ts", "catcat"]);
        assert_eq!(banned("cat", "the c", &tokens), ["at", "at the", "catcat"]);
    }

    #[test]
    fn every_way_in_which_the_word_is_begun() {
        // After "aa", "aaa" is complete by one more, or by two from one.
        assert_eq!(
            banned("aaa", "aa", &["a", "aab", "b", "baaa"]),
            ["a", "aab", "baaa"]
        );
        assert_eq!(
            banned("abab", "abab", &["ab", "bab", "abab", "b"]),
            ["ab", "abab"]
        );
    }

    #[test]
    fn parts_of_a_character() {
        let tokens = ["é", "e"];
        assert_eq!(banned("é", "", &tokens), ["é"]);
        let word = Word::new("é".into(), &[0, 1, 2], &[0xc3, 0xa9]);
        assert_eq!(word.completed_by(&[0xc3]).collect::<Vec<_>>(), [[1]]);
    }

    #[test]
    fn a_single_byte_needs_no_beginning() {
        assert_eq!(banned("x", "", &["x", "y", "ax"]), ["x", "ax"]);
    }
}
