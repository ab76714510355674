//! The second half of attention: rows' queries against keys and values.
//!
//! Scores are computed for as many positions at once as a vector has lanes, in
//! the order of `dim`; results for as many dims at once, in the order of
//! positions. So the bits of a row depend on its position alone. Rows of one
//! slot go through a block of keys or values together, while it is near.

use std::ops::Range;

use super::cache::{BLOCK, KvCache, RUN, RowAt};
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

    /// The query heads of some rows of one slot, in ascending order, that share
    /// key and value head `head`.
    pub(super) fn unit(&self, rows: Range<usize>, head: usize) -> AttendUnit<'_> {
        let first = rows.start;
        let rows = &self.cache.rows()[rows];
        let seen = |row: Option<&RowAt>| row.map_or(0..0, |row| self.seen(row.position));
        let origin = block_of(seen(rows.first()).start);
        let stride = (seen(rows.last()).end - origin).next_multiple_of(BLOCK);
        AttendUnit {
            attend: self,
            first,
            rows,
            head,
            origin,
            stride,
        }
    }
}

/// The start of a position's block.
fn block_of(position: usize) -> usize {
    position / BLOCK * BLOCK
}

/// The query heads of some rows that share a key and value head.
pub(super) struct AttendUnit<'a> {
    attend: &'a Attend<'a>,
    /// Number of the first row in the pass.
    first: usize,
    rows: &'a [RowAt],
    head: usize,
    /// The position of the first score, the start of a block.
    origin: usize,
    /// Scores kept for a query head of a row: whole blocks.
    stride: usize,
}

impl<'a> AttendUnit<'a> {
    fn n_heads(&self) -> usize {
        let shape = self.attend.cache.shape();
        shape.n_heads / shape.n_kv_heads
    }

    /// Scores that must be kept at once.
    pub(super) fn n_scores(&self) -> usize {
        self.rows.len() * self.stride * self.n_heads().min(GROUP)
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
        let n_heads = unit.n_heads();
        let mut h = 0;
        while h < n_heads {
            let n = GROUP.min(n_heads - h);
            let group = Group {
                unit: &unit,
                scores,
                first_head: unit.head * n_heads + h,
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

/// Up to `GROUP` query heads of a unit's rows.
struct Group<'a> {
    unit: &'a AttendUnit<'a>,
    /// `stride` for each head of each row.
    scores: *mut f32,
    first_head: usize,
}

impl Group<'_> {
    /// # Safety
    /// There are `G` heads; `scores`, queries and results are valid for them,
    /// and scores and results the caller's alone.
    #[inline(always)]
    unsafe fn run<S: Simd, const G: usize>(&self, s: S) {
        // SAFETY: as above.
        unsafe {
            self.score::<S, G>(s);
            let d = self.unit.attend.cache.shape().head_dim;
            let mut sums = [[0.0; G]; RUN];
            for r in 0..self.unit.rows.len() {
                for g in 0..G {
                    sums[r][g] =
                        self.exponentials(s, r, self.scores_of::<G>(r).add(g * self.unit.stride));
                }
            }
            let mut at = 0;
            while S::REGISTERS >= 32 && at + 4 * S::LANES <= d {
                self.gather::<S, G, 4>(s, &sums, at, S::LANES);
                at += 4 * S::LANES;
            }
            while at + 2 * S::LANES <= d {
                self.gather::<S, G, 2>(s, &sums, at, S::LANES);
                at += 2 * S::LANES;
            }
            while at < d {
                let n = S::LANES.min(d - at);
                self.gather::<S, G, 1>(s, &sums, at, n);
                at += n;
            }
        }
    }

    /// Where the heads of row `r` begin in the queries and in the results.
    fn offset(&self, r: usize) -> usize {
        let shape = self.unit.attend.cache.shape();
        ((self.unit.first + r) * shape.n_heads + self.first_head) * shape.head_dim
    }

    /// The scores of row `r`, the first that of position `origin`.
    fn scores_of<const G: usize>(&self, r: usize) -> *mut f32 {
        self.scores.wrapping_add(r * G * self.unit.stride)
    }

    fn seen(&self, r: usize) -> Range<usize> {
        self.unit.attend.seen(self.unit.rows[r].position)
    }

    /// The starts of the blocks that hold a position any row sees, and a row
    /// by which to find them in the cache.
    fn blocks(&self) -> impl Iterator<Item = (usize, RowAt)> {
        let rows = self.unit.rows;
        let last = rows[rows.len() - 1];
        (self.unit.origin..=last.position)
            .step_by(BLOCK)
            .map(move |block| (block, last))
    }

    /// Products of the queries with the keys of all blocks that hold a seen
    /// position.
    ///
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn score<S: Simd, const G: usize>(&self, s: S) {
        let Attend { cache, layer, .. } = *self.unit.attend;
        for (block, row) in self.blocks() {
            let keys = cache.keys(row, block, layer, self.unit.head);
            for r in 0..self.unit.rows.len() {
                let seen = self.seen(r);
                if seen.end <= block || block + BLOCK <= seen.start {
                    continue;
                }
                let end = (seen.end - block).min(BLOCK);
                let mut at = 0;
                // SAFETY: `at` stays within the block, whose scores begin at
                // block - origin.
                unsafe {
                    let queries = self.unit.attend.queries.add(self.offset(r));
                    let scores = self.scores_of::<G>(r).add(block - self.unit.origin);
                    while at < end {
                        let (keys, scores) = (keys.add(at), scores.add(at));
                        let n_vectors = (end - at).div_ceil(S::LANES);
                        if S::REGISTERS >= 32 && n_vectors >= 4 {
                            self.score_part::<S, G, 4>(s, queries, keys, scores);
                            at += 4 * S::LANES;
                        } else if n_vectors >= 2 {
                            self.score_part::<S, G, 2>(s, queries, keys, scores);
                            at += 2 * S::LANES;
                        } else {
                            self.score_part::<S, G, 1>(s, queries, keys, scores);
                            at += S::LANES;
                        }
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
        queries: *const f32,
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
                    let q = s.splat(queries.add(g * d + i).read());
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

    /// Replaces the scores x of a head of row `r` by e^(x - max), and those of
    /// positions that are not seen by 0. Returns the sum.
    ///
    /// # Safety
    /// `scores` is valid for `stride` values.
    #[inline(always)]
    unsafe fn exponentials<S: Simd>(&self, s: S, r: usize, scores: *mut f32) -> f32 {
        let seen = self.seen(r);
        let first = block_of(seen.start) - self.unit.origin;
        let (start, end) = (seen.start - self.unit.origin, seen.end - self.unit.origin);
        let end_of_vectors = end.next_multiple_of(S::LANES);
        // SAFETY: all below `stride`, a multiple of `BLOCK` not below `end`.
        unsafe {
            for at in (first..start).chain(end..end_of_vectors) {
                scores.add(at).write(f32::NEG_INFINITY);
            }
            let mut largest = s.splat(f32::NEG_INFINITY);
            for at in (first..end_of_vectors).step_by(S::LANES) {
                largest = s.max(largest, s.load(scores.add(at)));
            }
            let largest = s.splat(s.largest(largest));
            let mut sum = s.splat(0.0);
            for at in (first..end_of_vectors).step_by(S::LANES) {
                let e = exp(s, s.sub(s.load(scores.add(at)), largest));
                sum = s.add(sum, e);
                s.store(scores.add(at), e);
            }
            s.sum(sum)
        }
    }

    /// `P` vectors of the results from dim `at`, `n` lanes if `P` is 1: the sum
    /// of the values, each times its weight, divided by the sum of the weights
    /// in `sums`.
    ///
    /// # Safety
    /// As for `run`; the lanes lie within a head.
    #[inline(always)]
    unsafe fn gather<S: Simd, const G: usize, const P: usize>(
        &self,
        s: S,
        sums: &[[f32; G]; RUN],
        at: usize,
        n: usize,
    ) {
        let Attend {
            cache, layer, out, ..
        } = *self.unit.attend;
        let d = cache.shape().head_dim;
        for (block, row) in self.blocks() {
            let values = cache.values(row, block, layer, self.unit.head);
            for r in 0..self.unit.rows.len() {
                let seen = self.seen(r);
                if seen.end <= block || block + BLOCK <= seen.start {
                    continue;
                }
                let part = Part {
                    d,
                    stride: self.unit.stride,
                    n,
                    // Between blocks the sums stand where the results will.
                    out: out.wrapping_add(self.offset(r) + at),
                };
                let within = seen.start.saturating_sub(block)..(seen.end - block).min(BLOCK);
                let is_first = seen.start >= block;
                let is_last = seen.end <= block + BLOCK;
                // SAFETY: positions are seen, dims within a head, and results
                // ours.
                unsafe {
                    let mut acc = if is_first {
                        [[s.splat(0.0); P]; G]
                    } else {
                        part.load(s)
                    };
                    let scores = self.scores_of::<G>(r).add(block - self.unit.origin);
                    acc = part.add(s, acc, values.add(at), scores, within);
                    if is_last {
                        for g in 0..G {
                            let factor = s.splat(1.0 / sums[r][g]);
                            for p in 0..P {
                                acc[g][p] = s.mul(acc[g][p], factor);
                            }
                        }
                    }
                    part.store(s, acc);
                }
            }
        }
    }
}

/// Some dims of a row's results, for each head of a group.
struct Part {
    d: usize,
    /// From one head's scores to the next.
    stride: usize,
    /// Lanes, where a single vector is used.
    n: usize,
    out: *mut f32,
}

impl Part {
    /// Adds the values of some positions of a block, each times its weight.
    ///
    /// # Safety
    /// `values` and `scores` are those of a block, of which `positions` is a
    /// part.
    #[inline(always)]
    unsafe fn add<S: Simd, const G: usize, const P: usize>(
        &self,
        s: S,
        mut acc: [[S::V; P]; G],
        values: *const f32,
        scores: *const f32,
        positions: Range<usize>,
    ) -> [[S::V; P]; G] {
        for j in positions {
            // SAFETY: as promised to this function.
            unsafe {
                let mut columns = [s.splat(0.0); P];
                for p in 0..P {
                    let from = values.add(j * self.d + p * S::LANES);
                    columns[p] = if P == 1 {
                        s.load_part(from, self.n)
                    } else {
                        s.load(from)
                    };
                }
                for g in 0..G {
                    let weight = s.splat(scores.add(g * self.stride + j).read());
                    for p in 0..P {
                        acc[g][p] = s.mul_add(weight, columns[p], acc[g][p]);
                    }
                }
            }
        }
        acc
    }

    /// # Safety
    /// `out` is valid for reads of these dims.
    #[inline(always)]
    unsafe fn load<S: Simd, const G: usize, const P: usize>(&self, s: S) -> [[S::V; P]; G] {
        let mut acc = [[s.splat(0.0); P]; G];
        for g in 0..G {
            for p in 0..P {
                let from = self.out.wrapping_add(g * self.d + p * S::LANES);
                // SAFETY: as promised to this function.
                acc[g][p] = unsafe {
                    if P == 1 {
                        s.load_part(from, self.n)
                    } else {
                        s.load(from)
                    }
                };
            }
        }
        acc
    }

    /// # Safety
    /// `out` is valid for writes of these dims.
    #[inline(always)]
    unsafe fn store<S: Simd, const G: usize, const P: usize>(&self, s: S, acc: [[S::V; P]; G]) {
        for g in 0..G {
            for p in 0..P {
                let to = self.out.wrapping_add(g * self.d + p * S::LANES);
                // SAFETY: as promised to this function.
                unsafe {
                    if P == 1 {
                        s.store_part(to, acc[g][p], self.n);
                    } else {
                        s.store(to, acc[g][p]);
                    }
                }
            }
        }
    }
}
