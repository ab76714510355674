//! A few threads that stand by to take half of a computation of some ten
//! microseconds, for which waking a sleeping thread costs too much.
//!
//! A helper that has had work spins for a moment before it sleeps: the next
//! product of a forward pass follows at once. Work is dealt in pieces as
//! threads come for them, so a helper that the system keeps from running costs
//! nothing but its share.
//!
//! What has nothing to do with the computation, and need only be done when that
//! ends, helpers do while they stand by: [`beside`].

mod aside;

use std::{
    cell::UnsafeCell,
    hint,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, OnceLock, TryLockError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use aside::{Aside, Offered};

/// Stack of a helper: whoever shares work may need as much as for guest code.
const STACK_BYTES: usize = 8 << 20;
/// How long an idle helper spins before it sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// How often the caller looks for a helper's end before it yields its core.
const PATIENCE: u32 = 2_000;
/// How many of those looks pass where one takes a lock.
const LOOK: u32 = 64;

type Task<'a> = dyn Fn() + Sync + 'a;
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// Nothing to do. Also what the caller sets to take back a task that the
/// helper has not begun.
const IDLE: u32 = 0;
/// A task waits for the helper.
const POSTED: u32 = 1;
/// The helper runs the task.
const RUNNING: u32 = 2;
/// As `IDLE`; the task panicked.
const FAILED: u32 = 3;

#[repr(align(128))] // a cache line, and its neighbour, of its own
struct Helper {
    state: AtomicU32,
    asleep: AtomicBool,
    /// It does something that was offered beside.
    is_aside: AtomicBool,
    task: UnsafeCell<Option<*const Task<'static>>>,
    aside: &'static Aside,
}

// SAFETY: `task` is written only by the thread that holds the pool's turn while
// `state` is not `POSTED` or `RUNNING`, and read only by the helper while it is
// `RUNNING`; `state` orders the two.
unsafe impl Sync for Helper {}
// SAFETY: the pointer in `task` is to a `Sync` value.
unsafe impl Send for Helper {}

impl Helper {
    /// What a helper's thread does for ever.
    fn serve(&self) {
        loop {
            self.wait();
            if self
                .state
                .compare_exchange(POSTED, RUNNING, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                // Or the task was taken back.
                if let Some(taken) = self.aside.take() {
                    self.is_aside.store(true, Ordering::Relaxed);
                    self.aside.run(taken);
                    self.is_aside.store(false, Ordering::Relaxed);
                }
                continue;
            }
            // SAFETY: `state` is `RUNNING`, so the caller that posted the task
            // keeps it alive and unchanged until `state` changes again.
            let task = unsafe { (*self.task.get()).map(|task| &*task) };
            let ended = catch_unwind(AssertUnwindSafe(|| task.map(|task| task())));
            self.state
                .store(if ended.is_ok() { IDLE } else { FAILED }, Ordering::Release);
        }
    }

    /// Returns when a task, or something to do beside, may be there.
    fn wait(&self) {
        let since = Instant::now();
        loop {
            for _ in 0..64 {
                if self.is_wanted(Ordering::Relaxed) {
                    return;
                }
                hint::spin_loop();
            }
            if since.elapsed() > SPIN {
                break;
            }
        }
        // Either this thread sees the task below, or the one that posts it
        // sees `asleep`: both sides are sequentially consistent.
        self.asleep.store(true, Ordering::SeqCst);
        while !self.is_wanted(Ordering::SeqCst) {
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Whether it can be given a task: it has none, and none that has failed.
    fn is_idle(&self) -> bool {
        self.state.load(Ordering::Acquire) == IDLE
    }

    fn is_wanted(&self, ordering: Ordering) -> bool {
        self.state.load(ordering) == POSTED || self.aside.is_open.load(ordering)
    }
}

/// Calls `work` once with each of `0..n_pieces`, on the calling thread and on
/// those of the kernels, which stand by after a forward pass; returns when all
/// is done. A panic of `work` reaches the caller.
pub fn for_each(n_pieces: usize, work: impl Fn(usize) + Sync) {
    let pool = Pool::shared();
    pool.for_each(n_pieces, pool.n_threads(), work);
}

/// On how many threads that may be.
pub fn n_threads() -> usize {
    Pool::shared().n_threads()
}

/// Runs `main` here, and calls `work` once with each of `0..n_pieces` meanwhile on
/// threads of the kernels that have no part of `main` to do; what is left of it
/// when `main` ends, here as well. Returns when all is done. A panic of either
/// reaches the caller.
pub fn beside<R>(n_pieces: usize, work: impl Fn(usize) + Sync, main: impl FnOnce() -> R) -> R {
    Pool::shared().beside(n_pieces, &work, main)
}

/// The threads. Their number is fixed; they end with the process.
pub(crate) struct Pool {
    /// Held by the thread whose work the helpers do.
    turn: Mutex<()>,
    helpers: Vec<(&'static Helper, Thread)>,
    aside: &'static Aside,
}

impl Pool {
    /// The pool of this process, with a helper for each core but one.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Pool> = OnceLock::new();
        SHARED.get_or_init(|| Self::new(thread::available_parallelism().map_or(0, |n| n.get() - 1)))
    }

    /// Starts `n_helpers` threads, or as many as the system grants.
    pub(crate) fn new(n_helpers: usize) -> Self {
        let aside: &'static Aside = Box::leak(Box::default());
        let helpers = (0..n_helpers).map_while(|_| {
            let helper: &'static Helper = Box::leak(Box::new(Helper {
                state: AtomicU32::new(IDLE),
                asleep: AtomicBool::new(false),
                is_aside: AtomicBool::new(false),
                task: UnsafeCell::new(None),
                aside,
            }));
            let spawned = thread::Builder::new()
                .name("sluice-kernel".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || helper.serve());
            spawned.ok().map(|thread| (helper, thread.thread().clone()))
        });
        Self {
            turn: Mutex::new(()),
            helpers: helpers.collect(),
            aside,
        }
    }

    /// How many threads can work at once, the caller included.
    pub(crate) fn n_threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work` once with each of `0..n_pieces`, from at most `n_threads`
    /// threads, the calling one among them, and returns when all is done.
    /// While another thread has the helpers, the caller works alone.
    pub(crate) fn for_each(&self, n_pieces: usize, n_threads: usize, work: impl Fn(usize) + Sync) {
        let next = AtomicUsize::new(0);
        self.share(n_threads.min(n_pieces).saturating_sub(1), &|| {
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= n_pieces {
                    return;
                }
                work(piece);
            }
        });
    }

    fn beside<R>(&self, n_pieces: usize, work: &Work<'_>, main: impl FnOnce() -> R) -> R {
        // SAFETY: only the lifetime changes. `Offered` below does not let go before
        // nobody is at a piece and nobody can begin one.
        let unbound = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        if !self.aside.offer(n_pieces, unbound) {
            let done = main();
            self.for_each(n_pieces, self.n_threads(), work);
            return done;
        }
        let mut offered = Offered(Some(self.aside));
        for (helper, thread) in self.helpers.iter().take(n_pieces) {
            if helper.asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let done = main();
        while let Some(taken) = self.aside.take() {
            self.aside.run(taken);
        }
        assert!(
            !offered.end(),
            "what was done beside a computation panicked"
        );
        done
    }

    /// Runs `task` here and on up to `n_helpers` helpers, those first that do nothing
    /// else.
    fn share(&self, n_helpers: usize, task: &Task<'_>) {
        if n_helpers == 0 || self.helpers.is_empty() {
            return task();
        }
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(), // it guards nothing
            Err(TryLockError::WouldBlock) => return task(),
        };
        // SAFETY: only the lifetime changes. `Posted` below does not let go
        // before every helper has ended with the task or lost it.
        let unbound = unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        let mut posted = Posted {
            helpers: &self.helpers,
            failed: false,
        };
        let are = |is_aside: bool| {
            let helpers = self.helpers.iter();
            helpers.filter(move |(helper, _)| helper.is_aside.load(Ordering::Relaxed) == is_aside)
        };
        for (helper, thread) in are(false).chain(are(true)).take(n_helpers) {
            if !helper.is_idle() {
                continue; // one of the first has become one of the others
            }
            // SAFETY: we hold the turn, and the helper is idle.
            unsafe { *helper.task.get() = Some(unbound) };
            helper.state.store(POSTED, Ordering::SeqCst);
            if helper.asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        task();
        posted.settle();
        assert!(!posted.failed, "a helper thread of the kernels panicked");
    }
}

/// Helpers of which some have been given a task. Dropping it waits for those, also
/// when the caller's own part panics.
struct Posted<'a> {
    helpers: &'a [(&'static Helper, Thread)],
    failed: bool,
}

impl Posted<'_> {
    /// Takes the task back from helpers that have not begun and waits for the
    /// others.
    fn settle(&mut self) {
        for (helper, _) in std::mem::take(&mut self.helpers) {
            let state = &helper.state;
            let mut looks = 0;
            loop {
                match state.load(Ordering::Acquire) {
                    POSTED => {
                        let (taken_back, begun) = (Ordering::Acquire, Ordering::Relaxed);
                        let _ = state.compare_exchange(POSTED, IDLE, taken_back, begun);
                        continue;
                    }
                    RUNNING => {}
                    FAILED => {
                        self.failed = true;
                        state.store(IDLE, Ordering::Relaxed);
                    }
                    _ => break,
                }
                looks += 1;
                if looks > PATIENCE {
                    thread::yield_now();
                } else {
                    hint::spin_loop();
                }
            }
        }
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}

#[cfg(test)]
mod tests;
