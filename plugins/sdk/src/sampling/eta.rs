//! Tokens with `p ≥ min(ε, √ε·e^(−H))`, H the entropy in nats: the bar falls
//! where the model is unsure.
//! Hewitt et al. 2022, <https://arxiv.org/abs/2210.15191>.

use super::epsilon;
use crate::ranking::{Ranking, Row};

pub(super) fn kept<R: Row>(ranking: &mut Ranking<R>, epsilon: f64, min_keep: usize) -> usize {
    let cut = epsilon.min(epsilon.sqrt() * (-ranking.entropy()).exp());
    epsilon::kept(ranking, cut, min_keep)
}
