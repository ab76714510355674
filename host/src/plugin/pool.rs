//! Room for instances: how many there may be, of all plugins and of one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts the instances there are.
#[derive(Debug, Default)]
pub(super) struct Pool {
    taken: Mutex<u32>,
    freed: Condvar,
}

impl Pool {
    /// Room for `n` instances, of at most `most` there may be; waits for it up
    /// to `patience`.
    pub(super) fn reserve(
        self: &Arc<Self>,
        n: u32,
        most: u32,
        patience: Duration,
    ) -> Option<Vec<Permit>> {
        let deadline = Instant::now() + patience;
        let mut taken = self.lock();
        while most.saturating_sub(*taken) < n {
            let left = deadline.checked_duration_since(Instant::now())?;
            taken = self
                .freed
                .wait_timeout(taken, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *taken += n;
        Some((0..n).map(|_| Permit(Arc::clone(self))).collect())
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
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
        *self.0.lock() -= 1;
        self.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_waited_for_and_no_longer_than_asked() {
        let pool = Arc::new(Pool::default());
        let first = pool.reserve(2, 3, Duration::ZERO);
        assert!(first.is_some());
        assert!(pool.reserve(2, 3, Duration::ZERO).is_none());
        assert!(pool.reserve(2, 3, Duration::from_millis(5)).is_none());
        let second = pool.reserve(1, 3, Duration::ZERO);
        assert!(second.is_some());
        let waiting = {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || pool.reserve(3, 3, Duration::from_mins(1)).is_some())
        };
        drop(first);
        drop(second);
        assert!(waiting.join().is_ok_and(|reserved| reserved));
        assert!(pool.reserve(3, 3, Duration::ZERO).is_some());
    }
}
