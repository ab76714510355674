//! Tokens with `l ≥ max + ln(min_p)`: at least `min_p` times as likely as the
//! best. Nguyen et al. 2024, <https://arxiv.org/abs/2407.01082>.

use crate::ranking::{Ranking, Row};

pub(super) fn kept<R: Row>(ranking: &mut Ranking<R>, min_p: f64, min_keep: usize) -> usize {
    let cut = min_p.ln();
    ranking.head(min_keep, |ranking, rank| ranking.log_ratio(rank) >= cut)
}
