//! C = A · Bᵀ for row-major matrices, both operands contiguous along k: the
//! product of a batch of rows with a linear layer's weights.
//!
//! Every element of C is the sum over k in one order, whatever the shape of
//! the tile it is computed in: lane l adds up the products at l, l + LANES, …
//! from zero, missing products at the end counting as zero, and
//! [`Simd::sum`](crate::simd::Simd::sum) adds the lanes.

mod dense;
mod packed;

use std::{ops::Range, slice};

use crate::{
    buffer::{with_scratch, with_shared_scratch},
    pool::Pool,
    row::{BLOCK, block_maxima},
    simd::{Kernel, Level, Simd},
};
pub(crate) use dense::Dense;
use packed::{PackA, Packed, TileHeight};

/// Columns of C in a tile.
pub(crate) const N: usize = 4;
/// Below this many multiplications a second thread costs more than it brings.
const WORTH_A_THREAD: usize = 64 * 1024;
/// Pieces for each thread, so that a slow thread takes fewer.
const PIECES: usize = 4;
/// Values of A that a thread works on at once: half of a small second-level
/// cache.
const A_BLOCK: usize = 128 * 1024;
/// Least columns of C in a piece of a packed product.
const PACKED_COLUMNS: usize = 64;

/// C\[m, n\] = A\[m, k\] · B\[n, k\]ᵀ, all row-major and without gaps.
///
/// A row of C has the same bits whatever the other rows of A are, and how many.
///
/// # Panics
/// When a slice is not as long as its shape says.
pub fn matmul_nt(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    matmul_nt_on(Level::best(), Pool::shared(), [m, n, k], a, b, c, None);
}

/// [`matmul_nt`] into rows of logits, with the maxima of the blocks of each, as
/// [`Logits::resize`](crate::row::Logits::resize) gives room for them.
///
/// # Panics
/// When a slice is not as long as its shape says.
pub fn logits_nt(
    [m, n, k]: [usize; 3],
    a: &[f32],
    b: &[f32],
    (c, maxima): (&mut [f32], &mut [f32]),
) {
    let (level, pool) = (Level::best(), Pool::shared());
    matmul_nt_on(level, pool, [m, n, k], a, b, c, Some(maxima));
}

pub(crate) fn matmul_nt_on(
    level: Level,
    pool: &Pool,
    [m, n, k]: [usize; 3],
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    maxima: Option<&mut [f32]>,
) {
    assert_eq!(Some(a.len()), m.checked_mul(k), "A is not {m} x {k}");
    assert_eq!(Some(b.len()), n.checked_mul(k), "B is not {n} x {k}");
    assert_eq!(Some(c.len()), m.checked_mul(n), "C is not {m} x {n}");
    let b = Dense {
        data: b.as_ptr(),
        stride: k,
    };
    let product = Product {
        m,
        n,
        k,
        a: a.as_ptr(),
        lda: k,
        b,
        c: c.as_mut_ptr(),
        ldc: n,
        maxima: maxima.map(|maxima| maxima_of([m, n], maxima)),
    };
    // SAFETY: the slices hold what the shapes say, and C is borrowed mutably.
    unsafe { product.compute(level, pool) };
}

/// Where the maxima of a product `[m, n]` go.
///
/// # Panics
/// When there are not as many as the shape says.
pub(crate) fn maxima_of([m, n]: [usize; 2], maxima: &mut [f32]) -> *mut f32 {
    let expected = m.checked_mul(n.div_ceil(BLOCK));
    assert_eq!(Some(maxima.len()), expected, "maxima of {m} x {n}");
    maxima.as_mut_ptr()
}

/// The operand B, whose rows are the columns of C.
pub(crate) trait Columns: Sync + Sized {
    /// Up to this many rows of A, B is best read where it lies. Above, it is
    /// copied panel by panel into the order in which tiles read it.
    const DIRECT_ROWS: usize;

    /// Computes all rows of some columns of C, the first a multiple of [`N`].
    ///
    /// # Safety
    /// The columns lie within a valid product, and their part of C is the
    /// caller's.
    unsafe fn direct<S: Simd>(s: S, product: &Product<Self>, columns: Range<usize>);

    /// Copies `width <= N` rows of length `k` from row `j` on, a multiple of
    /// [`N`], and zeros for those missing, to `to[step][N][LANES]`.
    ///
    /// # Safety
    /// The rows are valid, and so is `to` for writes of N rows with k rounded
    /// up.
    unsafe fn panel<S: Simd>(&self, s: S, k: usize, j: usize, width: usize, to: *mut f32);

    /// What to prefetch, k values from there on, while a tile is computed from
    /// the panel of row `j`. The tiles of a panel are numbered.
    fn ahead(&self, j: usize, tile: usize) -> *const f32;
}

/// A product in memory: sides, and A and C with the distance between rows in
/// values.
pub(crate) struct Product<B> {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    pub(crate) lda: usize,
    pub(crate) b: B,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
    /// For the largest of each block of C's rows, `[m, n.div_ceil(BLOCK)]`, where
    /// they are wanted: whoever has just computed a block has it at hand.
    pub(crate) maxima: Option<*mut f32>,
}

// SAFETY: its pointers are used under the terms of `compute` only, which gives
// no two threads the same part of C.
unsafe impl<B: Sync> Sync for Product<B> {}

impl<B: Columns> Product<B> {
    /// # Safety
    /// A and B are valid for reads and C and the maxima for writes with these
    /// sides and distances, and neither of these overlaps another.
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
        if m <= B::DIRECT_ROWS {
            self.compute_directly(level, pool, n_threads, n_pieces);
        } else {
            self.compute_packed(level, pool, n_threads, n_pieces);
        }
    }

    fn compute_directly(&self, level: Level, pool: &Pool, n_threads: usize, n_pieces: usize) {
        let width = self.n.div_ceil(n_pieces).next_multiple_of(self.unit());
        pool.for_each(self.n.div_ceil(width), n_threads, |piece| {
            let columns = part(piece, width, self.n);
            level.run(Direct {
                product: self,
                columns: columns.clone(),
            });
            self.find_maxima(level, 0..self.m, columns);
        });
    }

    /// Columns of C of which a piece has a whole number.
    fn unit(&self) -> usize {
        if self.maxima.is_some() { BLOCK } else { N }
    }

    /// Finds the maxima of a part of C that is computed, where they are wanted.
    /// The part is the caller's, and begins with a block.
    fn find_maxima(&self, level: Level, rows: Range<usize>, columns: Range<usize>) {
        if let Some(to) = self.maxima {
            level.run(Maxima {
                product: self,
                to,
                rows,
                columns,
            });
        }
    }

    fn compute_packed(&self, level: Level, pool: &Pool, n_threads: usize, n_pieces: usize) {
        let Self { m, n, k, .. } = *self;
        let tile = level.run(TileHeight { m });
        let n_tiles = m.div_ceil(tile);
        with_shared_scratch(packed::a_len(m, k), |a| {
            let a = Shared(a);
            let n_packing = (m * k / WORTH_A_THREAD).clamp(1, n_threads);
            let share = n_tiles.div_ceil(n_packing);
            pool.for_each(n_packing, n_packing, |piece| {
                let tiles = part(piece, share, n_tiles);
                // SAFETY: as in `compute_directly`; the copy of A is as long as
                // asked for.
                level.run(unsafe { PackA::new(self, tiles, a.start()) });
            });
            let n_blocks = m.div_ceil((A_BLOCK / k.max(1)).clamp(16, 256));
            let height = n_tiles.div_ceil(n_blocks);
            let n_blocks = n_tiles.div_ceil(height);
            let width = n.div_ceil(n_pieces.div_ceil(n_blocks));
            let width = width.max(PACKED_COLUMNS).next_multiple_of(self.unit());
            let n_strips = n.div_ceil(width);
            pool.for_each(n_blocks * n_strips, n_threads, |piece| {
                let tiles = part(piece / n_strips, height, n_tiles);
                let columns = part(piece % n_strips, width, n);
                with_scratch(packed::panel_len(height * tile, k), |scratch| {
                    // SAFETY: as above; the scratch is this thread's and as
                    // long as asked for, and nobody writes to the copy of A.
                    let (tiles, columns) = (tiles.clone(), columns.clone());
                    level.run(unsafe { Packed::new(self, tiles, columns, a.start(), scratch) });
                });
                self.find_maxima(level, tiles.start * tile..m.min(tiles.end * tile), columns);
            });
        });
    }

    /// # Safety
    /// `i < m`.
    #[inline(always)]
    pub(crate) unsafe fn a_row(&self, i: usize) -> *const f32 {
        // SAFETY: within A, says the caller.
        unsafe { self.a.add(i * self.lda) }
    }

    /// # Safety
    /// `i < m` and `j < n`.
    #[inline(always)]
    pub(crate) unsafe fn c_at(&self, i: usize, j: usize) -> *mut f32 {
        // SAFETY: within C, says the caller.
        unsafe { self.c.add(i * self.ldc + j) }
    }

    /// Sets the first `width <= N` of these elements from (`i`, `j`) on.
    ///
    /// # Safety
    /// They lie within C, and are the caller's.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, i: usize, j: usize, width: usize, values: [f32; N]) {
        // SAFETY: as promised to this function.
        unsafe {
            let to = self.c_at(i, j);
            if width == N {
                // Of known length, this is an instruction and no call.
                to.cast::<[f32; N]>().write(values);
            } else {
                to.copy_from_nonoverlapping(values.as_ptr(), width);
            }
        }
    }
}

/// Memory that several threads use.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: whoever uses the pointer says why nobody else uses the same elements.
unsafe impl Sync for Shared {}

impl Shared {
    fn start(&self) -> *mut f32 {
        self.0
    }
}

/// Some columns of C, read where they lie. Made by `compute_directly` only.
struct Direct<'a, B> {
    product: &'a Product<B>,
    columns: Range<usize>,
}

impl<B: Columns> Kernel for Direct<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: `compute` is told that the product is valid; pieces do not
        // overlap, each is dealt once, and their width is a multiple of N.
        unsafe { B::direct(s, self.product, self.columns) };
    }
}

/// The maxima of some rows and columns of C. Made by `find_maxima` only.
struct Maxima<'a, B> {
    product: &'a Product<B>,
    to: *mut f32,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl<B> Kernel for Maxima<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Product { n, c, ldc, .. } = *self.product;
        let n_blocks = self.columns.len().div_ceil(BLOCK);
        for row in self.rows {
            // SAFETY: `compute` is told that C and the maxima are valid; these
            // columns of the row are the caller's and computed, they begin with a
            // block, and no other piece has any of these blocks.
            let (values, maxima) = unsafe {
                let to = self
                    .to
                    .add(row * n.div_ceil(BLOCK) + self.columns.start / BLOCK);
                (
                    slice::from_raw_parts(
                        c.add(row * ldc + self.columns.start),
                        self.columns.len(),
                    ),
                    slice::from_raw_parts_mut(to, n_blocks),
                )
            };
            block_maxima(s, values, maxima);
        }
    }
}

fn part(index: usize, size: usize, end: usize) -> Range<usize> {
    index * size..((index + 1) * size).min(end)
}

#[cfg(test)]
mod tests;
