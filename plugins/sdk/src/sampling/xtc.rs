//! Exclude top choices: of the tokens with `p ≥ threshold` all but the least
//! likely go. From text-generation-webui, pull request 6335.

use crate::{
    TokenId,
    ranking::{Ranking, Row},
};

/// How many of the best tokens are dropped. None if an end id would be among
/// them, or if fewer than `min_keep` tokens would remain.
pub(super) fn dropped<R: Row>(
    ranking: &mut Ranking<R>,
    threshold: f64,
    min_keep: usize,
    end_ids: &[TokenId],
) -> usize {
    let total = ranking.total();
    let mut choices = 0;
    while ranking.has(choices) && ranking.ratio(choices) / total >= threshold {
        choices += 1;
    }
    let dropped = choices.saturating_sub(1);
    let ends = (0..dropped).any(|rank| ranking.id(rank).is_some_and(|id| end_ids.contains(&id)));
    if ends || !ranking.has((dropped + min_keep).saturating_sub(1)) {
        return 0;
    }
    dropped
}
