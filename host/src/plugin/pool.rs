//! Room for instances: how many there may be, of all plugins and of one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::memory::MemoryBudget;

/// Counts what there may be only so much of, such as instances.
#[derive(Debug)]
pub(super) struct Pool {
    most: u32,
    /// More than these do not wait: each holds a thread.
    most_waiting: u32,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    taken: u32,
    n_waiting: u32,
    /// Permits that were given back until now.
    n_freed: u64,
}

impl Pool {
    pub(super) fn new(most: u32, most_waiting: u32) -> Self {
        Self {
            most,
            most_waiting,
            state: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// The most permits there may be.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// `n` permits, once there are so many; none if that is not before `end`, or
    /// too many wait already.
    pub(super) fn reserve(self: &Arc<Self>, n: u32, end: Instant) -> Option<Vec<Permit>> {
        let mut state = self.with_room(n, end)?;
        state.taken += n;
        Some((0..n).map(|_| Permit(Arc::clone(self))).collect())
    }

    /// Waits until there are so many permits, and takes none; false if that is not
    /// before `end`, or too many wait already.
    pub(super) fn wait_for(&self, n: u32, end: Instant) -> bool {
        self.with_room(n, end).is_some()
    }

    fn with_room(&self, n: u32, end: Instant) -> Option<MutexGuard<'_, State>> {
        let state = self.lock();
        let has = |state: &State| self.most.saturating_sub(state.taken) >= n;
        if has(&state) {
            return Some(state);
        }
        self.wait_until(state, end, has)
    }

    /// How many permits were given back until now.
    pub(super) fn n_freed(&self) -> u64 {
        self.lock().n_freed
    }

    /// Waits until more than `n_freed` permits were given back; false if that is
    /// not before `end`.
    pub(super) fn wait_for_another(&self, n_freed: u64, end: Instant) -> bool {
        self.wait_until(self.lock(), end, |state| state.n_freed > n_freed)
            .is_some()
    }

    fn wait_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        end: Instant,
        holds: impl Fn(&State) -> bool,
    ) -> Option<MutexGuard<'a, State>> {
        if state.n_waiting == self.most_waiting {
            return None;
        }
        state.n_waiting += 1;
        while !holds(&state) {
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                state.n_waiting -= 1;
                return None;
            };
            state = self
                .freed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.n_waiting -= 1;
        Some(state)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where one instance may be: among all, and among those of its plugin. Who has
/// a place may put another instance there once the first is gone.
pub(super) type Place = Arc<[Option<Permit>; 2]>;

/// The right to one instance, given back on drop.
#[derive(Debug)]
pub(super) struct Permit(Arc<Pool>);

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.taken -= 1;
        state.n_freed += 1;
        drop(state);
        self.0.freed.notify_all();
    }
}

/// What the uploaded plugins of one name may take together.
#[derive(Clone, Debug)]
pub(super) struct Room {
    pub(super) instances: Arc<Pool>,
    pub(super) memory: Arc<MemoryBudget>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon(milliseconds: u64) -> Instant {
        Instant::now() + Duration::from_millis(milliseconds)
    }

    #[test]
    fn room_is_waited_for_and_no_longer_than_asked() {
        let pool = Arc::new(Pool::new(3, 8));
        let first = pool.reserve(2, soon(0));
        assert!(first.is_some());
        assert!(pool.reserve(2, soon(0)).is_none());
        assert!(pool.reserve(2, soon(5)).is_none());
        let second = pool.reserve(1, soon(0));
        assert!(second.is_some());
        let waiting = {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || pool.reserve(3, soon(60_000)).is_some())
        };
        drop(first);
        drop(second);
        assert!(waiting.join().is_ok_and(|reserved| reserved));
        assert!(pool.reserve(3, soon(0)).is_some());
    }

    #[test]
    fn who_is_one_too_many_does_not_wait() {
        let pool = Arc::new(Pool::new(1, 0));
        let first = pool.reserve(1, soon(0));
        assert!(first.is_some());
        // It would wait for ever: nobody frees a permit.
        assert!(pool.reserve(1, soon(3_600_000)).is_none());
        drop(first);
        assert!(pool.reserve(1, soon(0)).is_some());
    }

    #[test]
    fn a_permit_that_was_freed_meanwhile_is_not_waited_for() {
        let pool = Arc::new(Pool::new(1, 1));
        let before = pool.n_freed();
        assert!(!pool.wait_for_another(before, soon(0)));
        drop(pool.reserve(1, soon(0)));
        assert!(pool.wait_for_another(before, soon(3_600_000)));
    }
}
