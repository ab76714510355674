//! C = A · Bᵀ for row-major matrices, both operands contiguous along k: the
//! product of a batch of rows with a linear layer's weights.
//!
//! Every element of C is the sum over k in one order, whatever the shape of
//! the tile it is computed in: lane l adds up the products at l, l + LANES, …
//! from zero, missing products at the end counting as zero, and
//! [`Simd::sum`](crate::simd::Simd::sum) adds the lanes.

mod direct;
mod packed;

use std::ops::Range;

use crate::{buffer::with_scratch, pool::Pool, simd::Level};
use direct::Direct;
use packed::Packed;

/// Columns of C in a tile.
const N: usize = 4;
/// Below this many multiplications a second thread costs more than it brings.
const WORTH_A_THREAD: usize = 64 * 1024;
/// Pieces for each thread, so that a slow thread takes fewer.
const PIECES: usize = 4;
/// From this many rows on, copying the operands into the order in which tiles
/// read them pays.
const PACKED_ROWS: usize = 24;
/// Values of A that a thread works on at once: half of a small second-level
/// cache.
const A_BLOCK: usize = 128 * 1024;
/// Least columns of C in a piece of a packed product: A is packed for each.
const PACKED_COLUMNS: usize = 64;

/// C\[m, n\] = A\[m, k\] · B\[n, k\]ᵀ, all row-major and without gaps.
///
/// A row of C has the same bits whatever the other rows of A are, and how many.
///
/// # Panics
/// When a slice is not as long as its shape says.
pub fn matmul_nt(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    matmul_nt_on(Level::best(), Pool::shared(), [m, n, k], a, b, c);
}

pub(crate) fn matmul_nt_on(
    level: Level,
    pool: &Pool,
    [m, n, k]: [usize; 3],
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
) {
    assert_eq!(Some(a.len()), m.checked_mul(k), "A is not {m} x {k}");
    assert_eq!(Some(b.len()), n.checked_mul(k), "B is not {n} x {k}");
    assert_eq!(Some(c.len()), m.checked_mul(n), "C is not {m} x {n}");
    let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
    let (lda, ldb, ldc) = (k, k, n);
    let product = Product {
        m,
        n,
        k,
        a,
        lda,
        b,
        ldb,
        c,
        ldc,
    };
    // SAFETY: the slices hold what the shapes say, and C is borrowed mutably.
    unsafe { product.compute(level, pool) };
}

/// A product in memory: sides, and each matrix with the distance between its
/// rows in values.
pub(crate) struct Product {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    pub(crate) lda: usize,
    pub(crate) b: *const f32,
    pub(crate) ldb: usize,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
}

// SAFETY: its pointers are used under the terms of `compute` only, which gives
// no two threads the same part of C.
unsafe impl Sync for Product {}

impl Product {
    /// # Safety
    /// A and B are valid for reads and C for writes with these sides and
    /// distances, and C overlaps neither.
    pub(crate) unsafe fn compute(&self, level: Level, pool: &Pool) {
        let Self { m, n, k, .. } = *self;
        if m == 0 || n == 0 {
            return;
        }
        let work = m.saturating_mul(n).saturating_mul(k);
        let n_threads = (work / WORTH_A_THREAD).clamp(1, pool.n_threads());
        let n_pieces = if n_threads == 1 {
            1
        } else {
            n_threads * PIECES
        };
        if m < PACKED_ROWS {
            self.compute_directly(level, pool, n_threads, n_pieces);
        } else {
            self.compute_packed(level, pool, n_threads, n_pieces);
        }
    }

    fn compute_directly(&self, level: Level, pool: &Pool, n_threads: usize, n_pieces: usize) {
        let width = self.n.div_ceil(n_pieces).next_multiple_of(N);
        pool.for_each(self.n.div_ceil(width), n_threads, |piece| {
            let columns = part(piece, width, self.n);
            // SAFETY: `compute` is told that the product is valid; pieces do
            // not overlap and each is dealt once.
            level.run(unsafe { Direct::new(self, columns) });
        });
    }

    fn compute_packed(&self, level: Level, pool: &Pool, n_threads: usize, n_pieces: usize) {
        let Self { m, n, k, .. } = *self;
        let n_blocks = m.div_ceil((A_BLOCK / k.max(1)).clamp(16, 256));
        let height = m.div_ceil(n_blocks);
        let width = n.div_ceil(n_pieces.div_ceil(n_blocks));
        let width = width.max(PACKED_COLUMNS).next_multiple_of(N);
        let n_strips = n.div_ceil(width);
        pool.for_each(n_blocks * n_strips, n_threads, |piece| {
            let rows = part(piece / n_strips, height, m);
            let columns = part(piece % n_strips, width, n);
            with_scratch(packed::scratch_len(height, k), |scratch| {
                // SAFETY: as in `compute_directly`; the scratch is this
                // thread's and as long as asked for.
                level.run(unsafe { Packed::new(self, rows, columns, scratch) });
            });
        });
    }

    /// # Safety
    /// `i < m`.
    #[inline(always)]
    unsafe fn a_row(&self, i: usize) -> *const f32 {
        // SAFETY: within A, says the caller.
        unsafe { self.a.add(i * self.lda) }
    }

    /// # Safety
    /// `j < n`.
    #[inline(always)]
    unsafe fn b_row(&self, j: usize) -> *const f32 {
        // SAFETY: within B, says the caller.
        unsafe { self.b.add(j * self.ldb) }
    }

    /// # Safety
    /// `i < m` and `j < n`.
    #[inline(always)]
    unsafe fn c_at(&self, i: usize, j: usize) -> *mut f32 {
        // SAFETY: within C, says the caller.
        unsafe { self.c.add(i * self.ldc + j) }
    }
}

fn part(index: usize, size: usize, end: usize) -> Range<usize> {
    index * size..((index + 1) * size).min(end)
}

#[cfg(test)]
mod tests;
