//! How long a repeat each token would go on with, and what that costs.

use std::collections::BTreeMap;

use sluice_plugin::{TokenId, matches::suffix_matches};

/// multiplier · base^(length − allowed).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strength {
    pub(crate) multiplier: f64,
    pub(crate) base: f64,
    pub(crate) allowed: usize,
}

impl Strength {
    /// The penalty for going on with a repeat of `length`, at least
    /// `allowed`: at most the largest f32.
    pub(crate) fn penalty(self, length: usize) -> f32 {
        /// ln of the largest f32.
        const LARGEST: f64 = 88.72;
        let most = (LARGEST / self.base.ln()).floor();
        let power = (length.saturating_sub(self.allowed) as f64).min(most);
        (self.multiplier * self.base.powf(power)).min(f64::from(f32::MAX)) as f32
    }
}

/// The tokens that once followed what the text ends with, with the length of
/// the longest such match: at least `allowed`, at most `unbroken`, which is
/// how many tokens there are since the last breaker.
pub(crate) fn longest(
    tokens: &[TokenId],
    unbroken: usize,
    allowed: usize,
) -> BTreeMap<TokenId, usize> {
    let mut longest = BTreeMap::new();
    if unbroken < allowed {
        return longest;
    }
    for (&id, matched) in tokens.iter().zip(suffix_matches(tokens)) {
        let length = matched.min(unbroken);
        if length >= allowed {
            let known = longest.entry(id).or_insert(length);
            *known = length.max(*known);
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::{Strength, longest};

    #[test]
    fn the_longest_match_counts() {
        // 3 followed 1 2 and, before that, 9 1 2.
        let tokens = [9, 1, 2, 3, 1, 2, 3, 1, 2, 4, 9, 1, 2];
        assert_eq!(
            longest(&tokens, 13, 2).into_iter().collect::<Vec<_>>(),
            [(3, 3), (4, 2)]
        );
        assert_eq!(
            longest(&tokens, 2, 2).into_iter().collect::<Vec<_>>(),
            [(3, 2), (4, 2)]
        );
        assert!(longest(&tokens, 1, 2).is_empty());
        assert!(longest(&[], 0, 1).is_empty());
    }

    #[test]
    fn the_penalty_stays_finite() {
        let strength = |multiplier, base| Strength {
            multiplier,
            base,
            allowed: 2,
        };
        assert_eq!(strength(0.8, 1.75).penalty(3), 1.4);
        assert_eq!(strength(0.5, 1.0).penalty(1_000_000), 0.5);
        assert_eq!(strength(100.0, 10.0).penalty(1_000_000), f32::MAX);
        // ⌊88.72 ÷ ln 2⌋ is 127.
        assert_eq!(strength(1.0, 2.0).penalty(200), 2_f32.powi(127));
    }
}
