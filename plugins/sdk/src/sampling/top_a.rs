//! Tokens with `p ≥ a·p_max²`: the surer the model of its best token, the
//! fewer others. BlinkDL 2021, RWKV-LM, section "The top-a sampling method".

use super::epsilon;
use crate::ranking::{Ranking, Row};

pub(super) fn kept<R: Row>(ranking: &mut Ranking<R>, a: f64, min_keep: usize) -> usize {
    let best = 1.0 / ranking.total();
    epsilon::kept(ranking, a * best * best, min_keep)
}
