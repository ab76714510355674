//! A row lent for the time of a call to code that owns what it holds, such as
//! the imports of a guest, so that it need not be copied.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::row::Scanned;

/// Where a row is lent through. Clones lend and read the same row.
#[derive(Clone, Default)]
pub struct Loan(Arc<Mutex<Option<Lent>>>);

/// Lives longer than it says: see [`Loan::lend`].
struct Lent(Scanned<'static>);

impl Loan {
    /// Lets [`read`](Self::read) see `row` while `work` runs.
    pub fn lend<R>(&self, row: Scanned<'_>, work: impl FnOnce() -> R) -> R {
        // SAFETY: only the lifetime changes. Nobody has the row but under the
        // lock, which is taken to end the loan before the row is let go.
        let unbound = unsafe { std::mem::transmute::<Scanned<'_>, Scanned<'static>>(row) };
        *self.lock() = Some(Lent(unbound));
        // Also when `work` panics.
        let _returned = Returned(self);
        work()
    }

    /// Calls `work` with the lent row, or an empty one if none is lent now.
    /// Must not be nested.
    pub fn read<R>(&self, work: impl FnOnce(Scanned<'_>) -> R) -> R {
        match &*self.lock() {
            Some(Lent(row)) => work(*row),
            None => work(Scanned::default()),
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
#[allow(clippy::unwrap_used)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::row;

    fn lend<R>(loan: &Loan, row: &[f32], work: impl FnOnce() -> R) -> R {
        let mut maxima = Vec::new();
        let row = row::scan(row, &mut maxima).unwrap();
        loan.lend(row, work)
    }

    #[test]
    fn a_row_is_seen_while_it_is_lent() {
        let loan = Loan::default();
        let other = loan.clone();
        let seen = || other.read(|row| row.values().to_vec());
        assert!(seen().is_empty());
        assert_eq!(lend(&loan, &[1.0, 2.0], seen), [1.0, 2.0]);
        assert!(seen().is_empty());
    }

    #[test]
    fn a_panic_ends_the_loan() {
        let loan = Loan::default();
        let row = vec![1.0];
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            lend(&loan, &row, || panic!("while the row is lent"));
        }));
        drop(row);
        assert!(panicked.is_err());
        assert!(loan.read(|row| row.values().is_empty()));
    }

    #[test]
    fn a_row_outlives_those_who_read_it() {
        let loan = Loan::default();
        let reader = loan.clone();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    reader.read(|row| {
                        assert!(row.values().iter().all(|&x| x == 7.0));
                        assert!(row.argmax().is_none_or(|id| id == 0));
                    });
                }
            });
            for _ in 0..2_000 {
                let row = vec![7.0; 64];
                lend(&loan, &row, std::thread::yield_now);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(read.join().is_ok());
        });
    }
}
