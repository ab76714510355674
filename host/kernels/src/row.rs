//! Passes over one logits row: what the plugin runtime needs of a whole
//! vocabulary. Negative infinity marks a banned token.

mod logits;
mod scanned;

pub use logits::{BadLogit, Logits, LogitsRow, LogitsRows, scan};
pub use scanned::Scanned;

use crate::simd::{Kernel, Level, Simd};

/// Values of a block, see [`Logits`]. A whole number of vectors.
pub const BLOCK: usize = 32;

/// Looks for values that no row may have.
///
/// # Errors
/// The first NaN or positive infinity.
pub fn check(row: &[f32]) -> Result<(), BadLogit> {
    match Level::best().run(Check { row }) {
        None => Ok(()),
        Some(id) => Err(BadLogit { id, value: row[id] }),
    }
}

/// The lowest id among those with the largest logit; none if all are banned.
/// The row has no NaN.
pub fn argmax(row: &[f32]) -> Option<u32> {
    scanned::argmax_on(Level::best(), row)
}

/// Adds `value` to the logits whose bit is set; id i is bit i % 32 of word
/// i / 32. Missing words are 0; bits past the row mean nothing. What is banned
/// stays banned, provided that `value` is neither NaN nor positive infinity.
pub fn add_masked(row: &mut [f32], words: &[u32], value: f32) {
    Level::best().run(AddMasked { row, words, value });
}

/// Bans the tokens whose bit is 0; id i is bit i % 32 of word i / 32. Missing
/// words are 0; bits past the row mean nothing.
pub fn mask(row: &mut [f32], words: &[u32]) {
    Level::best().run(Mask { row, words });
}

struct Check<'a> {
    row: &'a [f32],
}

impl Kernel for Check<'_> {
    /// The first that is bad.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let most = s.splat(f32::MAX);
        let all = u32::MAX >> (32 - S::LANES);
        for at in (0..self.row.len()).step_by(S::LANES) {
            let n = S::LANES.min(self.row.len() - at);
            // SAFETY: n values from `at` are within the row.
            let v = unsafe { load(s, self.row.as_ptr().add(at), n) };
            let good = s.at_least(most, v);
            if good != all {
                return Some(at + good.trailing_ones() as usize);
            }
        }
        None
    }
}

/// The first `n <= LANES` values, the other lanes 0.
///
/// # Safety
/// `from` is valid for reads of `n` values.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, from: *const f32, n: usize) -> S::V {
    // SAFETY: as above.
    unsafe {
        if n == S::LANES {
            s.load(from)
        } else {
            s.load_part(from, n)
        }
    }
}

/// The largest value, negative infinity for an empty row.
#[inline(always)]
fn largest<S: Simd>(s: S, row: &[f32]) -> f32 {
    const PARTS: usize = 4; // comparisons that do not wait for each other
    let mut best = [s.splat(f32::NEG_INFINITY); PARTS];
    let step = PARTS * S::LANES;
    let whole = row.len() - row.len() % step;
    for at in (0..whole).step_by(step) {
        for part in 0..PARTS {
            // SAFETY: within the whole steps of the row.
            let v = unsafe { s.load(row.as_ptr().add(at + part * S::LANES)) };
            best[part] = s.max(best[part], v);
        }
    }
    let best = s.largest(s.max(s.max(best[0], best[1]), s.max(best[2], best[3])));
    row[whole..].iter().fold(best, |best, &x| best.max(x))
}

/// Brings a block nearer.
#[inline(always)]
fn prefetch_block<S: Simd>(s: S, values: &[f32], block: usize) {
    const LINE: usize = 16; // values
    for at in (0..BLOCK).step_by(LINE) {
        s.prefetch(values.as_ptr().wrapping_add(block * BLOCK + at));
    }
}

/// The largest value of each block: NaN where one is NaN or positive infinity.
#[inline(always)]
pub(crate) fn block_maxima<S: Simd>(s: S, values: &[f32], maxima: &mut [f32]) {
    let most = s.splat(f32::MAX);
    for (block, maximum) in values.chunks(BLOCK).zip(maxima) {
        let mut best = s.splat(f32::NEG_INFINITY);
        let mut good = u32::MAX >> (32 - S::LANES);
        let whole = block.len() - block.len() % S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: within the whole vectors of the block.
            let v = unsafe { s.load(block.as_ptr().add(at)) };
            good &= s.at_least(most, v);
            best = s.max(best, v);
        }
        let rest = &block[whole..];
        let is_good = good == u32::MAX >> (32 - S::LANES) && rest.iter().all(|&x| x <= f32::MAX);
        *maximum = if is_good {
            rest.iter().fold(s.largest(best), |best, &x| best.max(x))
        } else {
            f32::NAN
        };
    }
}

struct AddMasked<'a> {
    row: &'a mut [f32],
    words: &'a [u32],
    value: f32,
}

impl Kernel for AddMasked<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let value = s.splat(self.value);
        for (part, &word) in self.row.chunks_mut(32).zip(self.words) {
            if word == 0 {
                continue;
            }
            for at in (0..part.len()).step_by(S::LANES) {
                let n = S::LANES.min(part.len() - at);
                // SAFETY: n values from `at` are within the part.
                unsafe {
                    let to = part.as_mut_ptr().add(at);
                    let v = load(s, to, n);
                    s.store_part(to, s.blend(word >> at, s.add(v, value), v), n);
                }
            }
        }
    }
}

struct Mask<'a> {
    row: &'a mut [f32],
    words: &'a [u32],
}

impl Kernel for Mask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let banned = s.splat(f32::NEG_INFINITY);
        let covered = self.row.len().min(self.words.len().saturating_mul(32));
        let (row, missing) = self.row.split_at_mut(covered);
        missing.fill(f32::NEG_INFINITY);
        for (part, &word) in row.chunks_mut(32).zip(self.words) {
            if word == u32::MAX {
                continue;
            }
            for at in (0..part.len()).step_by(S::LANES) {
                let n = S::LANES.min(part.len() - at);
                // SAFETY: n values from `at` are within the part.
                unsafe {
                    let to = part.as_mut_ptr().add(at);
                    s.store_part(to, s.blend(word >> at, load(s, to, n), banned), n);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
