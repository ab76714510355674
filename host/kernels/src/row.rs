//! Passes over one logits row: what the plugin runtime needs of a whole
//! vocabulary. Negative infinity marks a banned token.

mod top_k;

pub use top_k::{argmax, top_k};

use crate::simd::{ExpOver, Kernel, Level, Simd};

/// What is left of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    /// At least one token is not banned.
    Open,
    /// Every token is banned.
    AllBanned,
}

/// Looks for values that no row may have.
///
/// # Errors
/// The index of the first NaN or positive infinity.
pub fn check(row: &[f32]) -> Result<RowState, usize> {
    Level::best().run(Check { row })
}

/// ln Σ e^(logit / temperature) over the tokens that are not banned; negative
/// infinity if all are. The absolute error is below 1e-6, beside that of the
/// f64 itself.
///
/// `temperature` is above 0; below 1e-30 it counts as that, above 1e30 as that.
/// [`check`] has passed the row.
pub fn log_sum_exp(row: &[f32], temperature: f32) -> f64 {
    log_sum_exp_on(Level::best(), row, temperature)
}

fn log_sum_exp_on(level: Level, row: &[f32], temperature: f32) -> f64 {
    let temperature = temperature.clamp(1e-30, 1e30);
    let (largest, sum) = level.run(LogSumExp { row, temperature });
    if largest == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    f64::from(largest) / f64::from(temperature) + sum.ln()
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
    type Output = Result<RowState, usize>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (most, least) = (s.splat(f32::MAX), s.splat(f32::MIN));
        let all = u32::MAX >> (32 - S::LANES);
        let mut open = 0;
        for at in (0..self.row.len()).step_by(S::LANES) {
            let n = S::LANES.min(self.row.len() - at);
            // SAFETY: n values from `at` are within the row.
            let v = unsafe { load(s, self.row.as_ptr().add(at), n) };
            let good = s.at_least(most, v);
            if good != all {
                return Err(at + good.trailing_ones() as usize);
            }
            open |= s.at_least(v, least) & (all >> (S::LANES - n));
        }
        Ok(if open == 0 {
            RowState::AllBanned
        } else {
            RowState::Open
        })
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

struct LogSumExp<'a> {
    row: &'a [f32],
    temperature: f32,
}

/// Vectors of exponentials that are added in f32 before the sum goes on in f64:
/// equal values round in the same direction again and again.
const F32_SUM: usize = 16;

impl Kernel for LogSumExp<'_> {
    /// The largest logit, and Σ e^((logit - largest) / temperature).
    type Output = (f32, f64);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let top = largest(s, self.row);
        if top == f32::NEG_INFINITY {
            return (top, 0.0);
        }
        let tops = s.splat(top);
        let over = ExpOver::new(s, self.temperature);
        let mut total = 0.0;
        for chunk in self.row.chunks(F32_SUM * S::LANES) {
            let whole = chunk.len() - chunk.len() % S::LANES;
            let mut sum = s.splat(0.0);
            for at in (0..whole).step_by(S::LANES) {
                // SAFETY: within the whole vectors of the chunk.
                let v = unsafe { s.load(chunk.as_ptr().add(at)) };
                sum = s.add(sum, over.exp(s, s.sub(v, tops)));
            }
            total += f64::from(s.sum(sum));
            for &x in &chunk[whole..] {
                total += (f64::from(x - top) / f64::from(self.temperature)).exp();
            }
        }
        (top, total)
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
