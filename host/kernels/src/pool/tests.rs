use std::sync::PoisonError;

use super::*;

#[test]
fn every_piece_is_done_once() {
    for n_helpers in [0, 1, 3] {
        let pool = Pool::new(n_helpers);
        for n_pieces in [0, 1, 2, 7, 100] {
            let done: Vec<AtomicU32> = (0..n_pieces).map(|_| AtomicU32::new(0)).collect();
            pool.for_each(n_pieces, 4, |i| {
                done[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn every_piece_beside_is_done_once() {
    for n_helpers in [0, 1, 3] {
        let pool = Pool::new(n_helpers);
        for n_pieces in [0, 1, 2, 7, 100] {
            let done: Vec<AtomicU32> = (0..n_pieces).map(|_| AtomicU32::new(0)).collect();
            let sum = AtomicUsize::new(0);
            let work = |i: usize| {
                done[i].fetch_add(1, Ordering::Relaxed);
            };
            let main = || {
                for _ in 0..20 {
                    pool.for_each(9, 4, |i| {
                        sum.fetch_add(i, Ordering::Relaxed);
                    });
                }
                7
            };
            assert_eq!(pool.beside(n_pieces, &work, main), 7);
            assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            assert_eq!(sum.into_inner(), 20 * 36);
        }
    }
}

/// Pieces and the computation that each wait for the other can only end if a
/// helper does the one while the other runs, a sleeping one too.
#[test]
fn a_helper_does_pieces_while_the_computation_runs() {
    let pool = Pool::new(1);
    for pause in [Duration::ZERO, 5 * SPIN] {
        thread::sleep(pause);
        let met = AtomicU32::new(0);
        let meet = || {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
        };
        pool.beside(1, &|_| meet(), meet);
        assert_eq!(met.into_inner(), 2);
    }
}

/// Where one helper is at a piece, the computation has the other: its two parts
/// wait for each other, and the piece for its end.
#[test]
fn the_computation_takes_helpers_that_are_at_no_piece() {
    let pool = Pool::new(2);
    for pause in [Duration::ZERO, 5 * SPIN] {
        thread::sleep(pause);
        let [begun, ended] = [(); 2].map(|()| AtomicBool::new(false));
        let wait_for = |flag: &AtomicBool| {
            while !flag.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        };
        let piece = |_: usize| {
            begun.store(true, Ordering::SeqCst);
            wait_for(&ended);
        };
        pool.beside(1, &piece, || {
            wait_for(&begun);
            let met = AtomicU32::new(0);
            pool.for_each(2, 2, |_| {
                met.fetch_add(1, Ordering::SeqCst);
                while met.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
            });
            ended.store(true, Ordering::SeqCst);
        });
    }
}

/// Work may ask for helpers itself, and for work beside its own.
#[test]
fn pieces_share_and_have_pieces_beside() {
    let pool = Pool::new(2);
    let count = AtomicU32::new(0);
    let one = |_: usize| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let work = |_: usize| {
        pool.for_each(3, 3, one);
        pool.beside(2, &one, || one(0));
    };
    for _ in 0..200 {
        pool.beside(4, &work, || pool.for_each(5, 3, one));
    }
    assert_eq!(count.into_inner(), 200 * (4 * (3 + 2 + 1) + 5));
}

/// Longer than one waits without sleep.
#[test]
fn a_piece_that_takes_long_is_waited_for() {
    let pool = Pool::new(1);
    let begun = AtomicBool::new(false);
    let ended = AtomicBool::new(false);
    let work = |_: usize| {
        begun.store(true, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(30));
        ended.store(true, Ordering::SeqCst);
    };
    let main = || {
        while !begun.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    };
    pool.beside(1, &work, main);
    assert!(ended.into_inner());
}

/// Four callers at once, each of whom has pieces done as `share` does it.
fn callers_at_once(share: impl Fn(&Pool, usize, &Work<'_>) + Sync) {
    let pool = Pool::new(2);
    thread::scope(|scope| {
        for caller in 0..4_usize {
            let (pool, share) = (&pool, &share);
            scope.spawn(move || {
                for round in 0..500 {
                    let sum = AtomicUsize::new(0);
                    share(pool, round % 9, &|i| {
                        sum.fetch_add(caller * 1_000 + i, Ordering::Relaxed);
                    });
                    let expected: usize = (0..round % 9).map(|i| caller * 1_000 + i).sum();
                    assert_eq!(sum.load(Ordering::Relaxed), expected);
                }
            });
        }
    });
}

#[test]
fn callers_at_once_do_not_mix() {
    callers_at_once(|pool, n_pieces, work| pool.for_each(n_pieces, 3, work));
    callers_at_once(|pool, n_pieces, work| {
        pool.beside(n_pieces, work, || pool.for_each(3, 3, |_| ()));
    });
}

#[test]
fn a_panic_beside_reaches_the_caller_and_the_pool_survives() {
    let pool = Pool::new(1);
    let panics = |work: &Work<'_>, main: fn()| {
        let caught = catch_unwind(AssertUnwindSafe(|| pool.beside(3, work, main)));
        assert!(caught.is_err());
    };
    for _ in 0..3 {
        panics(&|_| panic!("beside"), || ());
        panics(&|_| (), || panic!("here"));
    }
    let count = AtomicU32::new(0);
    let work = |_| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    pool.beside(10, &work, || ());
    assert_eq!(count.into_inner(), 10);
}

#[test]
fn a_sleeping_helper_wakes() {
    let pool = Pool::new(1);
    thread::sleep(5 * SPIN);
    let other = Mutex::new(None);
    let here = thread::current().id();
    // Two pieces that each wait for the other can only end on two threads.
    let met = AtomicU32::new(0);
    pool.for_each(2, 2, |_| {
        met.fetch_add(1, Ordering::SeqCst);
        while met.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        if thread::current().id() != here {
            *other.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current().id());
        }
    });
    assert!(other.into_inner().is_ok_and(|id| id.is_some()));
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_survives() {
    let pool = Pool::new(1);
    for _ in 0..3 {
        let met = AtomicU32::new(0);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(2, 2, |_| {
                met.fetch_add(1, Ordering::SeqCst);
                while met.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
                panic!("on both threads");
            });
        }));
        assert!(caught.is_err());
    }
    let count = AtomicU32::new(0);
    pool.for_each(10, 2, |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(count.into_inner(), 10);
}
