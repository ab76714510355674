//! The bound on a token's surprise, `−log₂ p` in bits.

use sluice_plugin::ranking::{Ranking, Row};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) tau: f64,
    pub(crate) eta: f64,
    pub(crate) mu: f64,
}

impl Bound {
    /// Aims at the surprise `tau` at the rate `eta`; starts at 2τ.
    pub(crate) fn new(tau: f64, eta: f64) -> Self {
        Self {
            tau,
            eta,
            mu: 2.0 * tau,
        }
    }

    /// How many of the best tokens are no more surprising than the bound, at
    /// least one.
    pub(crate) fn kept<R: Row>(&self, ranking: &mut Ranking<R>) -> usize {
        let total = ranking.total();
        let mut n = 1;
        while ranking.has(n) && -(ranking.ratio(n) / total).log2() <= self.mu {
            n += 1;
        }
        n
    }

    /// After a token was drawn whose probability among those kept was `p`:
    /// μ −= η·(surprise − τ).
    pub(crate) fn follow(&mut self, p: f64) {
        self.mu -= self.eta * (-p.log2() - self.tau);
    }
}
