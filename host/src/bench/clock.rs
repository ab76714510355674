//! When a row's tokens are chosen, by the engine's own threads: whoever waits for
//! them may be late on a busy machine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::{Chain, Fault, Handle, Plan, Stats, TokenId};

/// What is noted when a token is chosen.
struct Tick {
    at: Instant,
    stats: Stats,
}

/// The ticks of one row.
#[derive(Clone, Default)]
pub(super) struct Clock(Arc<Mutex<Vec<Tick>>>);

impl Clock {
    /// The chain, with its tokens noted. `engine` says what it has counted.
    pub(super) fn around(&self, chain: Box<dyn Chain>, engine: Handle) -> Box<dyn Chain> {
        Box::new(Timed {
            chain,
            engine,
            clock: self.clone(),
        })
    }

    fn ticks(&self) -> MutexGuard<'_, Vec<Tick>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time from each of the first `n_steps` + 1 tokens to the next, and what
    /// the engine counted before and after; absent until they are chosen.
    pub(super) fn steps(&self, n_steps: usize) -> Option<(Vec<Duration>, Stats, Stats)> {
        let ticks = self.ticks();
        let ticks = ticks.get(..=n_steps)?;
        let steps = ticks.windows(2).map(|pair| pair[1].at - pair[0].at);
        Some((steps.collect(), ticks[0].stats, ticks[n_steps].stats))
    }
}

struct Timed {
    chain: Box<dyn Chain>,
    engine: Handle,
    clock: Clock,
}

impl Chain for Timed {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.chain.plan(accepted)
    }

    fn finish(&mut self, row: &mut [f32]) -> Result<TokenId, Fault> {
        let token = self.chain.finish(row);
        self.clock.ticks().push(Tick {
            at: Instant::now(),
            stats: self.engine.stats(),
        });
        token
    }

    fn patience(&self) -> Option<Duration> {
        self.chain.patience()
    }
}
