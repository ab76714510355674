//! No n tokens in a row occur twice. As in Hugging Face transformers'
//! `NoRepeatNGramLogitsProcessor`.

use sluice_plugin::TokenId;

/// The tokens that would complete a run of `size` tokens, at least one, that
/// `tokens` already has.
pub(crate) fn banned(tokens: &[TokenId], size: usize) -> Vec<TokenId> {
    let Some(start) = (tokens.len() + 1).checked_sub(size) else {
        return Vec::new();
    };
    let tail = &tokens[start..];
    let runs = tokens.windows(size).filter_map(|run| {
        let (last, before) = run.split_last()?;
        (before == tail).then_some(*last)
    });
    runs.collect()
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn longer_than_the_text_bans_nothing() {
        assert_eq!(banned(&[1, 1, 1], usize::MAX), [0; 0]);
    }
}
