//! In order, each token before which the probability is below p.
//! Holtzman et al. 2020, <https://arxiv.org/abs/1904.09751>.

use crate::ranking::{Ranking, Row};

/// How many tokens are kept, at least `min_keep` of those there are.
pub(crate) fn kept<R: Row>(ranking: &mut Ranking<R>, p: f64, min_keep: usize) -> usize {
    let total = ranking.total();
    let mut n = 0;
    while ranking.has(n) && (n < min_keep || ranking.mass(n) / total < p) {
        n += 1;
    }
    n
}
