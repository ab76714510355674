//! Where a text's end stood before.

use crate::TokenId;

/// For each position, how many tokens before it equal the tokens at the end:
/// the largest `n` for which `tokens[at - n..at]` is also the last `n` tokens.
/// One number for each position up to the last token's; matches may overlap
/// the end.
///
/// Linear time: the Z-algorithm (Gusfield 1997, section 1.3) on the reverse.
///
/// ```
/// use sluice_plugin::matches::suffix_matches;
///
/// // 1 2 stood before the 3.
/// assert_eq!(suffix_matches(&[1, 2, 3, 1, 2]), [0, 0, 2, 0, 0]);
/// ```
pub fn suffix_matches(tokens: &[TokenId]) -> Vec<usize> {
    let n = tokens.len();
    let mut matches = vec![0; n];
    // A stretch that is known to match reaches down to `low`; it was found
    // from the position `from`.
    let (mut low, mut from) = (n, n);
    for at in (1..n).rev() {
        let mut length = if at > low {
            matches[n - (from - at)].min(at - low)
        } else {
            0
        };
        while length < at && tokens[at - 1 - length] == tokens[n - 1 - length] {
            length += 1;
        }
        matches[at] = length;
        if at - length < low {
            (low, from) = (at - length, at);
        }
    }
    matches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{TokenId, suffix_matches};

    #[test]
    fn short_texts() {
        assert_eq!(suffix_matches(&[]), [0; 0]);
        assert_eq!(suffix_matches(&[4]), [0]);
        assert_eq!(suffix_matches(&[4, 5]), [0, 0]);
        assert_eq!(suffix_matches(&[4, 4]), [0, 1]);
    }

    #[test]
    fn matches_may_overlap_the_end() {
        assert_eq!(suffix_matches(&[8, 8, 8, 8]), [0, 1, 2, 3]);
        assert_eq!(suffix_matches(&[1, 2, 1, 2, 1]), [0, 1, 0, 3, 0]);
    }

    /// The definition.
    fn naive(tokens: &[TokenId]) -> Vec<usize> {
        let matches = |at: usize| {
            (0..=at)
                .rev()
                .find(|&n| tokens.ends_with(&tokens[at - n..at]))
        };
        (0..tokens.len())
            .map(|at| matches(at).unwrap_or(0))
            .collect()
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(tokens in prop::collection::vec(0..3_u32, 0..40)) {
            prop_assert_eq!(suffix_matches(&tokens), naive(&tokens));
        }
    }
}
