//! The best tokens of a row, without sorting it.
//!
//! The row is divided into somewhat more than k groups. At least k values are
//! not below the k-th largest of the groups' maxima, so whatever is below it
//! cannot be among the k best; few values are left to sort.

use std::cell::RefCell;

use super::largest;
use crate::simd::{Kernel, Level, Simd};

thread_local! {
    /// Candidates as sortable integers, see [`key`].
    static CANDIDATES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Replaces the content of `ids` and `logits` by the `k` best tokens:
/// descending by logit, equal logits ascending by id. Banned tokens are left
/// out, so there may be fewer. The row has passed [`check`](super::check).
///
/// Takes a few times as long as reading the row while k is at most a few
/// percent of it, and never more than sorting the row.
pub fn top_k(row: &[f32], k: usize, ids: &mut Vec<u32>, logits: &mut Vec<f32>) {
    top_k_on(Level::best(), row, k, ids, logits);
}

/// The lowest id among those with the largest logit; none if all are banned.
/// The row has passed [`check`](super::check).
pub fn argmax(row: &[f32]) -> Option<u32> {
    Level::best().run(ArgMax { row })
}

pub(super) fn top_k_on(
    level: Level,
    row: &[f32],
    k: usize,
    ids: &mut Vec<u32>,
    logits: &mut Vec<f32>,
) {
    ids.clear();
    logits.clear();
    if k <= 1 {
        if let Some(id) = level.run(ArgMax { row }).filter(|_| k == 1) {
            ids.push(id);
            logits.push(row[id as usize]);
        }
        return;
    }
    let floor = floor(level, row, k, logits);
    CANDIDATES.with_borrow_mut(|candidates| {
        candidates.clear();
        level.run(Collect {
            row,
            floor,
            candidates,
        });
        if candidates.len() > k {
            candidates.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
            candidates.truncate(k);
        }
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        logits.clear();
        for &candidate in candidates.iter() {
            let id = !candidate as u32;
            ids.push(id);
            logits.push(row[id as usize]);
        }
    });
}

/// A value that at least k values are not below, or the least finite one. Uses
/// `maxima` as room to work in.
fn floor(level: Level, row: &[f32], k: usize, maxima: &mut Vec<f32>) -> f32 {
    let n_groups = k.saturating_mul(3).max(128);
    if n_groups > row.len() / 2 {
        return f32::MIN;
    }
    level.run(Maxima {
        row,
        n_groups,
        out: maxima,
    });
    if maxima.len() < k {
        return f32::MIN;
    }
    let (_, kth, _) = maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    kth.max(f32::MIN)
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
    row: &'a [f32],
    n_groups: usize,
    out: &'a mut Vec<f32>,
}

impl Kernel for Maxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n_vectors = self.row.len() / S::LANES;
        let height = (n_vectors / self.n_groups.div_ceil(S::LANES)).max(1);
        self.out
            .resize(n_vectors.div_ceil(height) * S::LANES, f32::NEG_INFINITY);
        let (from, to) = (self.row.as_ptr(), self.out.as_mut_ptr());
        for (group, first) in (0..n_vectors).step_by(height).enumerate() {
            let mut best = s.splat(f32::NEG_INFINITY);
            for v in first..(first + height).min(n_vectors) {
                // SAFETY: vector v is within the row.
                best = s.max(best, unsafe { s.load(from.add(v * S::LANES)) });
            }
            // SAFETY: the maxima have a vector for each group of vectors.
            unsafe { s.store(to.add(group * S::LANES), best) };
        }
    }
}

/// The candidates: the values not below `floor`.
struct Collect<'a> {
    row: &'a [f32],
    floor: f32,
    candidates: &'a mut Vec<u64>,
}

impl Kernel for Collect<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let floor = s.splat(self.floor);
        let whole = self.row.len() - self.row.len() % S::LANES;
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: within the whole vectors of the row.
            let mut bits = s.at_least(unsafe { s.load(self.row.as_ptr().add(at)) }, floor);
            while bits != 0 {
                let id = at + bits.trailing_zeros() as usize;
                self.candidates.push(key(id, self.row[id]));
                bits &= bits - 1;
            }
        }
        for id in whole..self.row.len() {
            if self.row[id] >= self.floor {
                self.candidates.push(key(id, self.row[id]));
            }
        }
    }
}
