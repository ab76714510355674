//! Tokens in the order of `abs(−ln p − H)`, H the entropy in nats; ties higher
//! logit first, then lower id; as few as reach the mass p.
//! Meister et al. 2022, <https://arxiv.org/abs/2202.00666>.

use std::ops::Range;

use crate::ranking::{Ranking, Row};

pub(super) fn apply<R: Row>(ranking: &mut Ranking<R>, p: f64, min_keep: usize) {
    let total = ranking.total();
    // How much less likely than the best the typical token is.
    let typical = total.ln() - ranking.entropy();
    // Tokens above the typical are nearer the later they rank, those below
    // the earlier: what is kept grows from here both ways.
    let mut middle = 0;
    while ranking.has(middle) && ranking.log_ratio(middle) > typical {
        middle += 1;
    }
    let mut kept = Kept {
        ranks: middle..middle,
        tied: 0..0,
    };
    let mut mass = 0.0;
    while kept.len() < min_keep || mass / total < p {
        let Some(rank) = kept.next(ranking, typical) else {
            break;
        };
        mass += ranking.ratio(rank);
    }
    ranking.keep_ranks(kept.tied.chain(kept.ranks));
}

/// The ranks kept so far.
struct Kept {
    ranks: Range<usize>,
    /// The first of the tokens with one logit that stand just above `ranks`,
    /// where not all of them are kept.
    tied: Range<usize>,
}

impl Kept {
    fn len(&self) -> usize {
        self.ranks.len() + self.tied.len()
    }

    /// Keeps one token more, the nearest, and gives its rank.
    fn next<R: Row>(&mut self, ranking: &mut Ranking<R>, typical: f64) -> Option<usize> {
        if self.tied.is_empty() {
            let above = self.ranks.start.checked_sub(1);
            let above = above.map(|rank| (rank, ranking.log_ratio(rank) - typical));
            let below = self.ranks.end;
            let below = ranking
                .has(below)
                .then(|| (below, typical - ranking.log_ratio(below)));
            match (above, below) {
                (None, None) => return None,
                (Some((_, over)), Some((rank, under))) if under < over => {
                    self.ranks.end = rank + 1;
                    return Some(rank);
                }
                (None, Some((rank, _))) => {
                    self.ranks.end = rank + 1;
                    return Some(rank);
                }
                (Some((rank, _)), _) => {
                    let logit = ranking.logit(rank);
                    let mut first = rank;
                    while first > 0 && ranking.logit(first - 1) <= logit {
                        first -= 1;
                    }
                    self.tied = first..first;
                }
            }
        }
        let rank = self.tied.end;
        self.tied.end += 1;
        if self.tied.end == self.ranks.start {
            self.ranks.start = self.tied.start;
            self.tied = 0..0;
        }
        Some(rank)
    }
}
