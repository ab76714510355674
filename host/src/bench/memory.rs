//! How fast all processors together read memory, when they do nothing else.

use std::hint::black_box;
use std::num::NonZero;
use std::thread;
use std::time::Instant;

/// A part of memory, written once.
pub(super) struct Memory {
    words: Vec<u64>,
    n_threads: usize,
}

impl Memory {
    pub(super) fn new(mib: u32) -> Self {
        Self {
            words: vec![1; (mib as usize) << 17],
            n_threads: thread::available_parallelism().map_or(1, NonZero::get),
        }
    }

    /// Reads all of it once. Returns GB/s.
    pub(super) fn read(&self) -> f64 {
        let share = self.words.len().div_ceil(self.n_threads);
        let started = Instant::now();
        thread::scope(|scope| {
            for part in self.words.chunks(share) {
                scope.spawn(|| black_box(sum(part)));
            }
        });
        (self.words.len() * size_of::<u64>()) as f64 / 1e9 / started.elapsed().as_secs_f64()
    }
}

/// In lanes, so that the processor waits for memory alone.
fn sum(words: &[u64]) -> u64 {
    const LANES: usize = 32;
    let mut lanes = [0_u64; LANES];
    let (chunks, rest) = words.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    let all = lanes.iter().chain(rest);
    all.fold(0, |sum, word| sum.wrapping_add(*word))
}
