//! The inverse of the cumulative distribution.

use sluice_plugin::TokenId;

use crate::ranking::{Ranking, Row};

/// The first kept token from rank `first` on, in order, whose cumulative mass
/// exceeds `u` times their total; if none, the last. None if there is none.
pub(crate) fn draw<R: Row>(ranking: &mut Ranking<R>, first: usize, u: f64) -> Option<TokenId> {
    let mut chosen = ranking.id(first)?;
    let before = ranking.mass(first);
    let bar = u * (ranking.total() - before);
    let mut rank = first;
    while ranking.mass(rank + 1) - before <= bar {
        rank += 1;
        match ranking.id(rank) {
            Some(id) => chosen = id,
            None => break,
        }
    }
    Some(chosen)
}
