//! The second half of attention: a row's queries against keys and values.
//!
//! Scores are computed for as many positions at once as a vector has lanes, in
//! the order of `dim`; results for as many dims at once, in the order of
//! positions. So the bits of a row depend on its position alone.

use std::ops::Range;

use super::cache::{BLOCK, KvCache, RowAt};
use crate::simd::{Kernel, Simd, exp};

/// Attends with a layer's queries.
pub(super) struct Attend<'a> {
    pub(super) cache: &'a KvCache,
    pub(super) layer: usize,
    pub(super) window: Option<u32>,
    /// Rotated and scaled.
    pub(super) queries: *const f32,
    pub(super) out: *mut f32,
}

// SAFETY: threads get different units, and each writes its unit's results only.
unsafe impl Sync for Attend<'_> {}

impl Attend<'_> {
    /// The positions that a row at `position` sees.
    pub(super) fn seen(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        let window = self.window.map_or(end, |window| window.max(1) as usize);
        end.saturating_sub(window)..end
    }

    /// The query heads of row `r` that share key and value head `head`.
    pub(super) fn unit(&self, r: usize, head: usize) -> AttendUnit<'_> {
        let row = self.cache.rows()[r];
        let seen = self.seen(row.position);
        let origin = seen.start / BLOCK * BLOCK;
        let stride = (seen.end - origin).next_multiple_of(BLOCK);
        AttendUnit {
            attend: self,
            r,
            head,
            row,
            seen,
            origin,
            stride,
        }
    }
}

/// The query heads of one row that share a key and value head.
pub(super) struct AttendUnit<'a> {
    attend: &'a Attend<'a>,
    r: usize,
    head: usize,
    row: RowAt,
    seen: Range<usize>,
    /// The position of the first score, the start of a block.
    origin: usize,
    /// Scores kept for a query head: whole blocks.
    stride: usize,
}

impl<'a> AttendUnit<'a> {
    fn n_heads(&self) -> usize {
        let shape = self.attend.cache.shape();
        shape.n_heads / shape.n_kv_heads
    }

    /// Scores that must be kept at once.
    pub(super) fn n_scores(&self) -> usize {
        self.stride * self.n_heads().min(GROUP)
    }

    /// # Safety
    /// `scores` is valid for [`n_scores`](Self::n_scores) values and used by
    /// nobody else; nor is the unit.
    pub(super) unsafe fn with(self, scores: *mut f32) -> AttendWith<'a> {
        AttendWith { unit: self, scores }
    }
}

/// A unit and room for its scores.
pub(super) struct AttendWith<'a> {
    unit: AttendUnit<'a>,
    scores: *mut f32,
}

impl Kernel for AttendWith<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { unit, scores } = self;
        let shape = unit.attend.cache.shape();
        let n_heads = unit.n_heads();
        let first = unit.r * shape.n_heads + unit.head * n_heads;
        let mut h = 0;
        while h < n_heads {
            let n = GROUP.min(n_heads - h);
            let at = (first + h) * shape.head_dim;
            // The group's queries and results, within those of all heads.
            let queries = unit.attend.queries.wrapping_add(at);
            let out = unit.attend.out.wrapping_add(at);
            let group = Group {
                unit: &unit,
                scores,
                queries,
                out,
            };
            // SAFETY: `with` was given room for these scores; `attend` has
            // queries and results of all heads, and this unit's are ours.
            unsafe {
                match n {
                    1 => group.run::<S, 1>(s),
                    2 => group.run::<S, 2>(s),
                    3 => group.run::<S, 3>(s),
                    _ => group.run::<S, 4>(s),
                }
            }
            h += n;
        }
    }
}

/// Heads that go through keys and values together.
const GROUP: usize = 4;

/// Up to `GROUP` query heads of a unit.
struct Group<'a> {
    unit: &'a AttendUnit<'a>,
    /// `stride` for each head.
    scores: *mut f32,
    queries: *const f32,
    out: *mut f32,
}

impl Group<'_> {
    /// # Safety
    /// There are `G` heads; `scores`, `queries` and `out` are valid for them,
    /// and `scores` and `out` the caller's alone.
    #[inline(always)]
    unsafe fn run<S: Simd, const G: usize>(&self, s: S) {
        // SAFETY: as above.
        unsafe {
            self.score::<S, G>(s);
            let mut weights = [0.0; G];
            for g in 0..G {
                weights[g] = self.exponentials(s, self.scores.add(g * self.unit.stride));
            }
            self.gather::<S, G>(s, weights);
        }
    }

    /// Products of the queries with the keys of all blocks that hold a seen
    /// position.
    ///
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn score<S: Simd, const G: usize>(&self, s: S) {
        let Attend { cache, layer, .. } = *self.unit.attend;
        for block in (self.unit.origin..self.unit.seen.end).step_by(BLOCK) {
            let keys = cache.keys(self.unit.row, block, layer, self.unit.head);
            let end = (self.unit.seen.end - block).min(BLOCK);
            let mut at = 0;
            // SAFETY: `at` stays within the block, whose scores begin at
            // block - origin.
            unsafe {
                let scores = self.scores.add(block - self.unit.origin);
                while at < end {
                    let n_vectors = (end - at).div_ceil(S::LANES);
                    if S::REGISTERS >= 32 && n_vectors >= 4 {
                        self.score_part::<S, G, 4>(s, keys.add(at), scores.add(at));
                        at += 4 * S::LANES;
                    } else if n_vectors >= 2 {
                        self.score_part::<S, G, 2>(s, keys.add(at), scores.add(at));
                        at += 2 * S::LANES;
                    } else {
                        self.score_part::<S, G, 1>(s, keys.add(at), scores.add(at));
                        at += S::LANES;
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for `run`; `keys` and `scores` have `P` vectors in a block.
    #[inline(always)]
    unsafe fn score_part<S: Simd, const G: usize, const P: usize>(
        &self,
        s: S,
        keys: *const f32,
        scores: *mut f32,
    ) {
        let d = self.unit.attend.cache.shape().head_dim;
        let mut acc = [[s.splat(0.0); P]; G];
        // SAFETY: i < head_dim; the rest says the caller.
        unsafe {
            for i in 0..d {
                let mut columns = [s.splat(0.0); P];
                for p in 0..P {
                    columns[p] = s.load(keys.add(i * BLOCK + p * S::LANES));
                }
                for g in 0..G {
                    let q = s.splat(self.queries.add(g * d + i).read());
                    for p in 0..P {
                        acc[g][p] = s.mul_add(q, columns[p], acc[g][p]);
                    }
                }
            }
            for g in 0..G {
                for p in 0..P {
                    s.store(scores.add(g * self.unit.stride + p * S::LANES), acc[g][p]);
                }
            }
        }
    }

    /// Replaces a head's scores x by e^(x - max), and those of positions that
    /// are not seen by 0. Returns the sum.
    ///
    /// # Safety
    /// `scores` is valid for `stride` values.
    #[inline(always)]
    unsafe fn exponentials<S: Simd>(&self, s: S, scores: *mut f32) -> f32 {
        let (start, end) = (
            self.unit.seen.start - self.unit.origin,
            self.unit.seen.end - self.unit.origin,
        );
        let end_of_vectors = end.next_multiple_of(S::LANES);
        // SAFETY: all below `stride`, a multiple of `BLOCK` not below `end`.
        unsafe {
            for at in (0..start).chain(end..end_of_vectors) {
                scores.add(at).write(f32::NEG_INFINITY);
            }
            let mut largest = s.splat(f32::NEG_INFINITY);
            for at in (0..end_of_vectors).step_by(S::LANES) {
                largest = s.max(largest, s.load(scores.add(at)));
            }
            let largest = s.splat(s.largest(largest));
            let mut sum = s.splat(0.0);
            for at in (0..end_of_vectors).step_by(S::LANES) {
                let e = exp(s, s.sub(s.load(scores.add(at)), largest));
                sum = s.add(sum, e);
                s.store(scores.add(at), e);
            }
            s.sum(sum)
        }
    }

    /// The sum of the values, each times its weight; `sums` are the sums of the
    /// weights.
    ///
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn gather<S: Simd, const G: usize>(&self, s: S, sums: [f32; G]) {
        let d = self.unit.attend.cache.shape().head_dim;
        let mut at = 0;
        // SAFETY: the parts stay below head_dim.
        unsafe {
            while S::REGISTERS >= 32 && at + 4 * S::LANES <= d {
                self.gather_part::<S, G, 4>(s, sums, at, S::LANES);
                at += 4 * S::LANES;
            }
            while at + 2 * S::LANES <= d {
                self.gather_part::<S, G, 2>(s, sums, at, S::LANES);
                at += 2 * S::LANES;
            }
            while at < d {
                let n = S::LANES.min(d - at);
                self.gather_part::<S, G, 1>(s, sums, at, n);
                at += n;
            }
        }
    }

    /// `P` vectors of the results from dim `at`; `n` lanes if `P` is 1.
    ///
    /// # Safety
    /// As for `run`; the lanes lie within a head.
    #[inline(always)]
    unsafe fn gather_part<S: Simd, const G: usize, const P: usize>(
        &self,
        s: S,
        sums: [f32; G],
        at: usize,
        n: usize,
    ) {
        let Attend { cache, layer, .. } = *self.unit.attend;
        let d = cache.shape().head_dim;
        let mut acc = [[s.splat(0.0); P]; G];
        // SAFETY: positions are seen, dims within a head.
        unsafe {
            for block in (self.unit.origin..self.unit.seen.end).step_by(BLOCK) {
                let values = cache
                    .values(self.unit.row, block, layer, self.unit.head)
                    .add(at);
                let scores = self.scores.add(block - self.unit.origin);
                let start = self.unit.seen.start.saturating_sub(block);
                for j in start..(self.unit.seen.end - block).min(BLOCK) {
                    let mut columns = [s.splat(0.0); P];
                    for p in 0..P {
                        let from = values.add(j * d + p * S::LANES);
                        columns[p] = if P == 1 {
                            s.load_part(from, n)
                        } else {
                            s.load(from)
                        };
                    }
                    for g in 0..G {
                        let weight = s.splat(scores.add(g * self.unit.stride + j).read());
                        for p in 0..P {
                            acc[g][p] = s.mul_add(weight, columns[p], acc[g][p]);
                        }
                    }
                }
            }
            for g in 0..G {
                let factor = s.splat(1.0 / sums[g]);
                for p in 0..P {
                    let v = s.mul(acc[g][p], factor);
                    let to = self.out.add(g * d + at + p * S::LANES);
                    if P == 1 {
                        s.store_part(to, v, n);
                    } else {
                        s.store(to, v);
                    }
                }
            }
        }
    }
}
