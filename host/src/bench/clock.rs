//! When a row's tokens are chosen, by the engine's own threads: whoever waits for
//! them may be late on a busy machine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::{Chain, Fault, Handle, LogitsRow, Plan, Stats, TokenId};

/// What is noted of a row.
#[derive(Default)]
struct Notes {
    /// When each token was chosen.
    chosen: Vec<Instant>,
    /// What the engine had counted when each token was planned: the steps before
    /// the one that chose it.
    counted: Vec<Stats>,
}

/// The notes of one row.
#[derive(Clone, Default)]
pub(super) struct Clock(Arc<Mutex<Notes>>);

impl Clock {
    /// The chain, with its tokens noted. `engine` says what it has counted.
    pub(super) fn around(&self, chain: Box<dyn Chain>, engine: Handle) -> Box<dyn Chain> {
        Box::new(Timed {
            chain,
            engine,
            clock: self.clone(),
        })
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time from each of the first `n_steps` + 1 tokens to the next, and what
    /// the engine had counted before and after those steps, of which the one that
    /// ended the prompt is none. Absent until another token is planned.
    pub(super) fn steps(&self, n_steps: usize) -> Option<(Vec<Duration>, Stats, Stats)> {
        let notes = self.notes();
        let (before, after) = (notes.counted.get(1)?, notes.counted.get(n_steps + 1)?);
        let chosen = notes.chosen.get(..=n_steps)?;
        let steps = chosen.windows(2).map(|pair| pair[1] - pair[0]);
        Some((steps.collect(), *before, *after))
    }
}

struct Timed {
    chain: Box<dyn Chain>,
    engine: Handle,
    clock: Clock,
}

impl Chain for Timed {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.clock.notes().counted.push(self.engine.stats());
        self.chain.plan(accepted)
    }

    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        let token = self.chain.finish(row);
        self.clock.notes().chosen.push(Instant::now());
        token
    }

    fn sample_time(&self) -> Duration {
        self.chain.sample_time()
    }

    fn patience(&self) -> Option<Duration> {
        self.chain.patience()
    }
}
