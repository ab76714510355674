//! A row lent for the time of a call to code that owns what it holds, such as
//! the imports of a guest, so that it need not be copied.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a row is lent through. Clones lend and read the same row.
#[derive(Clone, Default)]
pub struct Loan(Arc<Mutex<Option<Lent>>>);

struct Lent(*const [f32]);

// SAFETY: it is read like a shared slice, and a slice of f32 may be read from
// any thread.
unsafe impl Send for Lent {}

impl Loan {
    /// Lets [`read`](Self::read) see `row` while `work` runs.
    pub fn lend<R>(&self, row: &[f32], work: impl FnOnce() -> R) -> R {
        *self.lock() = Some(Lent(row));
        // Also when `work` panics.
        let _returned = Returned(self);
        work()
    }

    /// Calls `work` with the lent row, or an empty one if none is lent now.
    /// Must not be nested.
    pub fn read<R>(&self, work: impl FnOnce(&[f32]) -> R) -> R {
        match &*self.lock() {
            // SAFETY: `lend` has borrowed the row, and before it lets go it
            // takes this lock to end the loan.
            Some(Lent(row)) => work(unsafe { &**row }),
            None => work(&[]),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Returned<'a>(&'a Loan);

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_row_is_seen_while_it_is_lent() {
        let loan = Loan::default();
        let other = loan.clone();
        let seen = || other.read(<[f32]>::to_vec);
        assert!(seen().is_empty());
        assert_eq!(loan.lend(&[1.0, 2.0], seen), [1.0, 2.0]);
        assert!(seen().is_empty());
    }

    #[test]
    fn a_panic_ends_the_loan() {
        let loan = Loan::default();
        let row = vec![1.0];
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            loan.lend(&row, || panic!("while the row is lent"));
        }));
        drop(row);
        assert!(panicked.is_err());
        assert!(loan.read(<[f32]>::is_empty));
    }

    #[test]
    fn a_row_outlives_those_who_read_it() {
        let loan = Loan::default();
        let reader = loan.clone();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    reader.read(|row| assert!(row.iter().all(|&x| x == 7.0)));
                }
            });
            for _ in 0..2_000 {
                let row = vec![7.0; 64];
                loan.lend(&row, std::thread::yield_now);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(read.join().is_ok());
        });
    }
}
