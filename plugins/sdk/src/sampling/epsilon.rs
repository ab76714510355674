//! Tokens with `p ≥ ε`.
//! Hewitt et al. 2022, <https://arxiv.org/abs/2210.15191>.

use crate::ranking::{Ranking, Row};

pub(super) fn kept<R: Row>(ranking: &mut Ranking<R>, epsilon: f64, min_keep: usize) -> usize {
    let total = ranking.total();
    ranking.head(min_keep, |ranking, rank| {
        ranking.ratio(rank) / total >= epsilon
    })
}
