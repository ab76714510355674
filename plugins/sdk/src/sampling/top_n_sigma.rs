//! Tokens with `l ≥ max − n·σ`, σ the standard deviation of the population of
//! tokens not banned. Tang et al. 2024, <https://arxiv.org/abs/2411.07641>.

use crate::ranking::{Ranking, Row};

pub(super) fn kept<R: Row>(ranking: &mut Ranking<R>, n: f64, min_keep: usize) -> usize {
    let cut = -n * ranking.deviation();
    ranking.head(min_keep, |ranking, rank| ranking.log_ratio(rank) >= cut)
}
