//! The last token of a bad word is banned while the generated tokens end with
//! the ones before it. The prompt's tail does not count.

use sluice_plugin::TokenId;

use crate::BadWord;

/// The token lists of all words. A text has two: as it is, and with a leading
/// space, or without if it has one.
pub(crate) fn spellings(
    words: Vec<BadWord>,
    encode: impl Fn(&str) -> Vec<TokenId>,
) -> Result<Vec<Vec<TokenId>>, String> {
    let mut spellings = Vec::new();
    for word in words {
        match word {
            BadWord::Ids(ids) => spellings.push(ids),
            BadWord::Text(text) => {
                let other = match text.strip_prefix(' ') {
                    Some(bare) => bare.to_owned(),
                    None => format!(" {text}"),
                };
                let as_given = encode(&text);
                if as_given.is_empty() {
                    return Err(format!("bad_words: `{text}` has no tokens"));
                }
                spellings.extend([as_given, encode(&other)]);
            }
        }
    }
    spellings.retain(|ids| !ids.is_empty());
    Ok(spellings)
}

#[derive(Debug)]
pub(crate) struct BadWords {
    words: Vec<Vec<TokenId>>,
    /// As many generated tokens as the longest word looks back at.
    tail: Vec<TokenId>,
    reach: usize,
}

impl BadWords {
    /// None of `words` is empty.
    pub(crate) fn new(words: Vec<Vec<TokenId>>) -> Self {
        let reach = words.iter().map(|word| word.len() - 1).max().unwrap_or(0);
        Self {
            words,
            tail: Vec::new(),
            reach,
        }
    }

    pub(crate) fn push(&mut self, accepted: &[TokenId]) {
        self.tail.extend_from_slice(accepted);
        self.tail
            .drain(..self.tail.len().saturating_sub(self.reach));
    }

    /// The tokens that would complete a word now.
    pub(crate) fn banned(&self) -> Vec<TokenId> {
        let last = self.words.iter().filter_map(|word| {
            let (last, before) = word.split_last()?;
            self.tail.ends_with(before).then_some(*last)
        });
        last.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{BadWord, BadWords, spellings};

    fn banned(words: &[&[u32]], generated: &[u32]) -> Vec<u32> {
        let mut bad = BadWords::new(words.iter().map(|word| word.to_vec()).collect());
        bad.push(generated);
        bad.banned()
    }

    #[test]
    fn one_token_is_always_banned() {
        assert_eq!(banned(&[&[3], &[1, 2]], &[]), [3]);
    }

    #[test]
    fn several_are_banned_at_the_last() {
        let words: &[&[u32]] = &[&[1, 2, 3], &[2, 4]];
        assert_eq!(banned(words, &[1]), [0; 0]);
        assert_eq!(banned(words, &[1, 2]), [3, 4]);
        assert_eq!(banned(words, &[2, 1]), [0; 0]);
        assert_eq!(banned(words, &[9, 9, 9, 1, 2]), [3, 4]);
    }

    #[test]
    fn tokens_may_come_one_by_one() {
        let mut bad = BadWords::new(vec![vec![1, 1, 5]]);
        for _ in 0..2 {
            assert_eq!(bad.banned(), [0; 0]);
            bad.push(&[1]);
        }
        assert_eq!(bad.banned(), [5]);
    }

    #[test]
    fn text_counts_with_and_without_a_leading_space() {
        let by_byte = |text: &str| text.bytes().map(u32::from).collect();
        let of = |text: &str| spellings(vec![BadWord::Text(text.into())], by_byte);
        assert_eq!(of("a"), Ok(vec![vec![97], vec![32, 97]]));
        assert_eq!(of(" a"), Ok(vec![vec![32, 97], vec![97]]));
        assert_eq!(of(" "), Ok(vec![vec![32]]));
        assert_eq!(of(""), Err("bad_words: `` has no tokens".into()));
    }
}
