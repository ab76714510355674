//! No n tokens in a row occur twice. As in Hugging Face transformers'
//! `NoRepeatNGramLogitsProcessor`.

use sluice_plugin::{TokenId, matches::suffix_matches};

/// The tokens that would complete a run of `size` tokens, at least one, that
/// `tokens` already has. Linear time.
pub(crate) fn banned(tokens: &[TokenId], size: usize) -> Vec<TokenId> {
    let runs = tokens.iter().zip(suffix_matches(tokens));
    let completing = runs.filter(|&(_, before)| before >= size - 1);
    completing.map(|(&id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::banned;

    #[test]
    fn one_bans_every_token_seen() {
        assert_eq!(banned(&[], 1), [0; 0]);
        assert_eq!(banned(&[1, 3, 1], 1), [1, 3, 1]);
    }

    #[test]
    fn the_third_of_a_run_of_three() {
        assert_eq!(banned(&[1, 2], 3), [0; 0]);
        assert_eq!(banned(&[1, 2, 3, 1], 3), [0; 0]);
        assert_eq!(banned(&[1, 2, 3, 1, 2], 3), [3]);
        assert_eq!(banned(&[1, 2, 3, 1, 2, 4, 1, 2], 3), [3, 4]);
    }

    #[test]
    fn runs_may_overlap() {
        assert_eq!(banned(&[5, 5], 2), [5]);
        assert_eq!(banned(&[5, 5, 5], 3), [5]);
    }

    proptest! {
        /// The definition, window by window.
        #[test]
        fn agrees_with_the_definition(
            tokens in prop::collection::vec(0..3_u32, 0..30),
            size in 1..6_usize,
        ) {
            let tail = tokens.len().checked_sub(size - 1).map(|start| &tokens[start..]);
            let runs = tokens.windows(size);
            let completing = runs.filter(|run| Some(&run[..size - 1]) == tail);
            let expected: Vec<_> = completing.map(|run| run[size - 1]).collect();
            prop_assert_eq!(banned(&tokens, size), expected);
        }
    }

    #[test]
    fn longer_than_the_text_bans_nothing() {
        assert_eq!(banned(&[1, 1, 1], usize::MAX), [0; 0]);
    }
}
