//! What a row's best tokens are, and the sum over it.
//!
//! For the k best the row is divided into somewhat more than k groups. At least k
//! values are not below the k-th largest of the groups' maxima, so whatever is
//! below it cannot be among the k best; few values are left to sort. Where k is
//! small, groups are made of whole blocks, and the row itself is read only in the
//! blocks that hold one of those values.

use std::cell::RefCell;

use super::{BLOCK, largest, prefetch_block};
use crate::simd::{ExpOver, Kernel, Level, Simd};

thread_local! {
    /// Candidates as sortable integers, see [`key`]. Maxima are sorted in the same
    /// form: code that has not run for a step comes slowly too.
    static CANDIDATES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// A row whose values are no NaN and no positive infinity, and the maxima of all
/// its blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scanned<'a> {
    values: &'a [f32],
    maxima: &'a [f32],
}

impl<'a> Scanned<'a> {
    pub(super) fn new(values: &'a [f32], maxima: &'a [f32]) -> Self {
        Self { values, maxima }
    }

    /// The logits by id.
    pub fn values(self) -> &'a [f32] {
        self.values
    }

    /// The row of the ids below `end`. `maxima` is room to work in.
    pub fn head<'b>(self, end: usize, maxima: &'b mut Vec<f32>) -> Scanned<'b>
    where
        'a: 'b,
    {
        if end >= self.values.len() {
            return self;
        }
        maxima.clear();
        maxima.extend_from_slice(&self.maxima[..end.div_ceil(BLOCK)]);
        let values = &self.values[..end];
        let last = end - end % BLOCK;
        if last < end {
            maxima[last / BLOCK] = values[last..]
                .iter()
                .fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        }
        Scanned { values, maxima }
    }

    /// Whether every token is banned.
    pub fn is_banned(self) -> bool {
        !self
            .maxima
            .iter()
            .any(|&maximum| maximum > f32::NEG_INFINITY)
    }

    /// The lowest id among those with the largest logit; none if all are banned.
    pub fn argmax(self) -> Option<u32> {
        self.argmax_on(Level::best())
    }

    fn argmax_on(self, level: Level) -> Option<u32> {
        let block = level.run(ArgMax { row: self.maxima })? as usize * BLOCK;
        let end = self.values.len().min(block + BLOCK);
        let row = &self.values[block..end];
        Some(block as u32 + level.run(ArgMax { row })?)
    }

    /// Replaces the content of `ids` and `logits` by the `k` best tokens:
    /// descending by logit, equal logits ascending by id. Banned tokens are left
    /// out, so there may be fewer.
    ///
    /// Takes about as long as reading the maxima while k is a small part of their
    /// number, and never more than sorting the row.
    pub fn top_k(self, k: usize, ids: &mut Vec<u32>, logits: &mut Vec<f32>) {
        self.top_k_on(Level::best(), k, ids, logits);
    }

    pub(super) fn top_k_on(
        self,
        level: Level,
        k: usize,
        ids: &mut Vec<u32>,
        logits: &mut Vec<f32>,
    ) {
        ids.clear();
        logits.clear();
        if k <= 1 {
            if let Some(id) = self.argmax_on(level).filter(|_| k == 1) {
                ids.push(id);
                logits.push(self.values[id as usize]);
            }
            return;
        }
        CANDIDATES.with_borrow_mut(|candidates| {
            let floor = floor(level, self.maxima, k, logits, candidates)
                .or_else(|| floor(level, self.values, k, logits, candidates))
                .unwrap_or(f32::MIN);
            candidates.clear();
            level.run(Collect {
                row: self,
                floor,
                candidates,
            });
            keep_best(candidates, k);
            candidates.sort_unstable_by(|a, b| b.cmp(a));
            ids.extend(candidates.iter().map(|&candidate| !candidate as u32));
            logits.clear();
            logits.extend(ids.iter().map(|&id| self.values[id as usize]));
        });
    }

    /// ln Σ e^(logit / temperature) over the tokens that are not banned; negative
    /// infinity if all are. The absolute error is below 1e-6, beside that of the
    /// f64 itself.
    ///
    /// `temperature` is above 0; below 1e-30 it counts as that, above 1e30 as that.
    pub fn log_sum_exp(self, temperature: f32) -> f64 {
        self.log_sum_exp_on(Level::best(), temperature)
    }

    pub(super) fn log_sum_exp_on(self, level: Level, temperature: f32) -> f64 {
        let temperature = temperature.clamp(1e-30, 1e30);
        let (largest, sum) = level.run(LogSumExp {
            row: self,
            temperature,
        });
        if largest == f32::NEG_INFINITY {
            return f64::NEG_INFINITY;
        }
        f64::from(largest) / f64::from(temperature) + sum.ln()
    }
}

pub(super) fn argmax_on(level: Level, row: &[f32]) -> Option<u32> {
    level.run(ArgMax { row })
}

/// Keeps the `k` largest, in any order. Returns the least of those, if there are as
/// many.
fn keep_best(keys: &mut Vec<u64>, k: usize) -> Option<u64> {
    let last = k.checked_sub(1)?;
    if last >= keys.len() {
        return None;
    }
    let (_, &mut least, _) = keys.select_nth_unstable_by(last, |a, b| b.cmp(a));
    keys.truncate(k);
    Some(least)
}

/// A finite value that at least k of these are not below; none where groups
/// would be too small to find one. Uses `maxima` and `keys` as room to work in.
fn floor(
    level: Level,
    values: &[f32],
    k: usize,
    maxima: &mut Vec<f32>,
    keys: &mut Vec<u64>,
) -> Option<f32> {
    let n_groups = k.saturating_mul(3).max(128);
    if n_groups > values.len() / 2 {
        return None;
    }
    level.run(Maxima {
        values,
        n_groups,
        out: maxima,
    });
    keys.clear();
    keys.extend(
        (0..)
            .zip(&*maxima)
            .map(|(group, &maximum)| key(group, maximum)),
    );
    let kth = !keep_best(keys, k)? as u32;
    Some(maxima[kth as usize].max(f32::MIN))
}

/// An integer whose order is that of (logit, descending id).
fn key(id: usize, logit: f32) -> u64 {
    let bits = (logit + 0.0).to_bits(); // -0 becomes 0
    let ordered = if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    };
    u64::from(ordered) << 32 | u64::from(!(id as u32))
}

struct ArgMax<'a> {
    row: &'a [f32],
}

impl Kernel for ArgMax<'_> {
    type Output = Option<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Option<u32> {
        let top = largest(s, self.row);
        if top == f32::NEG_INFINITY {
            return None;
        }
        let tops = s.splat(top);
        let whole = self.row.len() - self.row.len() % S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: within the whole vectors of the row.
            let bits = s.at_least(unsafe { s.load(self.row.as_ptr().add(at)) }, tops);
            if bits != 0 {
                return Some(at as u32 + bits.trailing_zeros());
            }
        }
        (whole..self.row.len())
            .find(|&i| self.row[i] >= top)
            .map(|i| i as u32)
    }
}

/// The maxima of about `n_groups` groups. A group is a lane of some vectors
/// that follow each other.
struct Maxima<'a> {
    values: &'a [f32],
    n_groups: usize,
    out: &'a mut Vec<f32>,
}

impl Kernel for Maxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n_vectors = self.values.len() / S::LANES;
        let height = (n_vectors / self.n_groups.div_ceil(S::LANES)).max(1);
        self.out
            .resize(n_vectors.div_ceil(height) * S::LANES, f32::NEG_INFINITY);
        let (from, to) = (self.values.as_ptr(), self.out.as_mut_ptr());
        for (group, first) in (0..n_vectors).step_by(height).enumerate() {
            let mut best = s.splat(f32::NEG_INFINITY);
            for v in first..(first + height).min(n_vectors) {
                // SAFETY: vector v is within the values.
                best = s.max(best, unsafe { s.load(from.add(v * S::LANES)) });
            }
            // SAFETY: the maxima have a vector for each group of vectors.
            unsafe { s.store(to.add(group * S::LANES), best) };
        }
    }
}

/// The candidates: the values not below `floor`, which is finite.
struct Collect<'a> {
    row: Scanned<'a>,
    floor: f32,
    candidates: &'a mut Vec<u64>,
}

impl Kernel for Collect<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Scanned { values, maxima } = self.row;
        let floor = s.splat(self.floor);
        // Few blocks, which may come from afar: all are asked for first.
        for first in (0..maxima.len()).step_by(S::LANES) {
            let mut blocks = high_blocks(s, maxima, first, floor);
            while blocks != 0 {
                prefetch_block(s, values, first + blocks.trailing_zeros() as usize);
                blocks &= blocks - 1;
            }
        }
        for first in (0..maxima.len()).step_by(S::LANES) {
            let mut blocks = high_blocks(s, maxima, first, floor);
            while blocks != 0 {
                let start = (first + blocks.trailing_zeros() as usize) * BLOCK;
                blocks &= blocks - 1;
                for at in (start..values.len().min(start + BLOCK)).step_by(S::LANES) {
                    let n = S::LANES.min(values.len() - at);
                    // SAFETY: n values from `at` are within the row.
                    let v = unsafe { super::load(s, values.as_ptr().add(at), n) };
                    let mut bits = s.at_least(v, floor) & (u32::MAX >> (32 - n));
                    while bits != 0 {
                        let id = at + bits.trailing_zeros() as usize;
                        self.candidates.push(key(id, values[id]));
                        bits &= bits - 1;
                    }
                }
            }
        }
    }
}

/// A bit for each of a vector's blocks, from `first` on, that has a value not below
/// `floor`.
#[inline(always)]
fn high_blocks<S: Simd>(s: S, maxima: &[f32], first: usize, floor: S::V) -> u32 {
    let n = S::LANES.min(maxima.len() - first);
    // SAFETY: n maxima from `first` are within them.
    let high = unsafe { super::load(s, maxima.as_ptr().add(first), n) };
    s.at_least(high, floor) & (u32::MAX >> (32 - n))
}

struct LogSumExp<'a> {
    row: Scanned<'a>,
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
        let top = largest(s, self.row.maxima);
        if top == f32::NEG_INFINITY {
            return (top, 0.0);
        }
        let tops = s.splat(top);
        let over = ExpOver::new(s, self.temperature);
        let mut total = 0.0;
        for chunk in self.row.values.chunks(F32_SUM * S::LANES) {
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
