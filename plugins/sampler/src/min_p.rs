//! Tokens with `l ≥ max + ln(min_p)`: at least `min_p` times as likely as the
//! best. Nguyen et al. 2024, <https://arxiv.org/abs/2407.01082>.

use crate::ranking::{Ranking, Row};

/// How many tokens are kept, at least `min_keep` of those there are.
pub(crate) fn kept<R: Row>(ranking: &mut Ranking<R>, min_p: f64, min_keep: usize) -> usize {
    let cut = min_p.ln();
    let mut n = 0;
    while ranking.has(n) && (n < min_keep || ranking.log_ratio(n) >= cut) {
        n += 1;
    }
    n
}
