//! In order, each token before which the probability is below p.
//! Holtzman et al. 2020, <https://arxiv.org/abs/1904.09751>.

use crate::ranking::{Ranking, Row};

pub(super) fn kept<R: Row>(ranking: &mut Ranking<R>, p: f64, min_keep: usize) -> usize {
    let total = ranking.total();
    ranking.head(min_keep, |ranking, rank| ranking.mass(rank) / total < p)
}
