//! Pieces of work that threads do while they have nothing else to do.

use std::{
    hint,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{LOOK, PATIENCE, Work};

/// What helpers do while they have no task.
#[derive(Default)]
#[repr(align(128))] // as of a helper: idle ones look at it all the time
pub(super) struct Aside {
    /// There are pieces that nobody has begun.
    pub(super) is_open: AtomicBool,
    pieces: Mutex<Option<Pieces>>,
    /// Nobody is at a piece any more.
    done: Condvar,
}

struct Pieces {
    left: Range<usize>,
    n_running: usize,
    has_failed: bool,
    work: &'static Work<'static>,
}

impl Aside {
    /// Offers pieces, unless another's are there. Until [`end`](Self::end) is called
    /// `work` must stay alive, in spite of its type.
    pub(super) fn offer(&self, n_pieces: usize, work: &'static Work<'static>) -> bool {
        let mut pieces = self.lock();
        if pieces.is_some() || n_pieces == 0 {
            return false;
        }
        *pieces = Some(Pieces {
            left: 0..n_pieces,
            n_running: 0,
            has_failed: false,
            work,
        });
        self.is_open.store(true, Ordering::SeqCst);
        true
    }

    /// Does a piece that was taken.
    pub(super) fn run(&self, (piece, work): (usize, &'static Work<'static>)) {
        let failed = catch_unwind(AssertUnwindSafe(|| work(piece))).is_err();
        if let Some(pieces) = &mut *self.lock() {
            pieces.has_failed |= failed;
            pieces.n_running -= 1;
            if pieces.n_running == 0 {
                self.done.notify_all();
            }
        }
    }

    /// One of the pieces that nobody has begun; it must be run.
    pub(super) fn take(&self) -> Option<(usize, &'static Work<'static>)> {
        if !self.is_open.load(Ordering::Relaxed) {
            return None;
        }
        let mut pieces = self.lock();
        let pieces = pieces.as_mut()?;
        let piece = pieces.left.next();
        if pieces.left.is_empty() {
            self.is_open.store(false, Ordering::Relaxed);
        }
        pieces.n_running += usize::from(piece.is_some());
        Some((piece?, pieces.work))
    }

    /// Takes the pieces away that nobody has begun, and waits for those that are at
    /// one: at first without sleep, for most take no longer than to wake up. Returns
    /// whether one has failed.
    fn end(&self) -> bool {
        let mut looks = 0;
        let mut pieces = self.lock();
        self.is_open.store(false, Ordering::Relaxed);
        while let Some(found) = &mut *pieces {
            found.left = 0..0;
            if found.n_running == 0 {
                break;
            }
            pieces = if looks < PATIENCE {
                drop(pieces);
                (0..LOOK).for_each(|_| hint::spin_loop());
                looks += LOOK;
                self.lock()
            } else {
                let woken = self.done.wait(pieces);
                woken.unwrap_or_else(PoisonError::into_inner)
            };
        }
        pieces.take().is_some_and(|pieces| pieces.has_failed)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pieces>> {
        // Nobody panics under it.
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pieces that were offered. Dropping it ends that, also when the caller's own part
/// panics.
pub(super) struct Offered<'a>(pub(super) Option<&'a Aside>);

impl Offered<'_> {
    /// Returns whether a piece has failed.
    pub(super) fn end(&mut self) -> bool {
        self.0.take().is_some_and(Aside::end)
    }
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
