//! C = A · Bᵀ for row-major matrices, both operands contiguous along k: the
//! product of a batch of rows with a linear layer's weights.
//!
//! Every element of C is the sum over k in one order, whatever the shape of
//! the tile it is computed in: lane l adds up the products at l, l + LANES, …
//! from zero, missing products at the end counting as zero, and
//! [`Simd::sum`] adds the lanes.

use std::ops::Range;

use crate::{
    buffer::with_scratch,
    pool::Pool,
    simd::{Kernel, Level, Simd},
};

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
        let wanted_pieces = if n_threads == 1 {
            1
        } else {
            n_threads * PIECES
        };
        if m < PACKED_ROWS {
            let width = n.div_ceil(wanted_pieces).next_multiple_of(N);
            pool.for_each(n.div_ceil(width), n_threads, |piece| {
                level.run(Direct {
                    product: self,
                    columns: part(piece, width, n),
                });
            });
        } else {
            let height = (A_BLOCK / k.max(1)).clamp(16, 256).min(m);
            let n_blocks = m.div_ceil(height);
            let height = m.div_ceil(n_blocks).next_multiple_of(4);
            let n_blocks = m.div_ceil(height);
            let width = n.div_ceil(wanted_pieces.div_ceil(n_blocks));
            let width = width.max(PACKED_COLUMNS).next_multiple_of(N);
            let n_strips = n.div_ceil(width);
            pool.for_each(n_blocks * n_strips, n_threads, |piece| {
                let rows = part(piece / n_strips, height, m);
                let columns = part(piece % n_strips, width, n);
                with_scratch((height + 8 + N) * (k + 16), |scratch| {
                    level.run(Packed {
                        product: self,
                        rows,
                        columns,
                        scratch,
                    });
                });
            });
        }
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

/// Some columns of C for few rows: the operands are read where they lie. B
/// comes from memory once; A stays in the cache.
struct Direct<'a> {
    product: &'a Product,
    columns: Range<usize>,
}

impl Kernel for Direct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: `columns` lies within the product, and no other thread has
        // them.
        unsafe {
            if S::REGISTERS >= 32 {
                direct::<S, 4>(s, self.product, self.columns);
            } else {
                direct::<S, 2>(s, self.product, self.columns);
            }
        }
    }
}

/// # Safety
/// `columns` lies within the product, and its part of C is the caller's.
#[inline(always)]
unsafe fn direct<S: Simd, const M: usize>(s: S, product: &Product, columns: Range<usize>) {
    let mut j = columns.start;
    // SAFETY: the columns from j on, four or one, are the caller's.
    unsafe {
        while j + N <= columns.end {
            // The tiles of a panel share in prefetching the next one.
            match product.m.div_ceil(M) {
                1 => panel::<S, M, N, 4>(s, product, j),
                2 | 3 => panel::<S, M, N, 2>(s, product, j),
                _ => panel::<S, M, N, 1>(s, product, j),
            }
            j += N;
        }
        while j < columns.end {
            panel::<S, M, 1, 1>(s, product, j);
            j += 1;
        }
    }
}

/// All rows of `W` columns of C from column `j`, in tiles of `M` rows, each of
/// which prefetches `AHEAD` rows of B.
///
/// # Safety
/// The columns lie within the product, and their part of C is the caller's.
#[inline(always)]
unsafe fn panel<S: Simd, const M: usize, const W: usize, const AHEAD: usize>(
    s: S,
    product: &Product,
    j: usize,
) {
    let (mut i, mut ahead) = (0, 0);
    // SAFETY: rows i to i + M, or what is left of them, lie within the product.
    unsafe {
        while i + M <= product.m {
            tile::<S, M, W, AHEAD>(s, product, i, j, ahead);
            i += M;
            ahead = (ahead + AHEAD) % W;
        }
        match product.m - i {
            1 => tile::<S, 1, W, AHEAD>(s, product, i, j, ahead),
            2 => tile::<S, 2, W, AHEAD>(s, product, i, j, ahead),
            3 => tile::<S, 3, W, AHEAD>(s, product, i, j, ahead),
            _ => {}
        }
    }
}

/// `M` rows by `W` columns of C from (`i`, `j`); prefetches the next panel's
/// rows from `ahead` on.
///
/// # Safety
/// They lie within the product, and this part of C is the caller's.
#[inline(always)]
unsafe fn tile<S: Simd, const M: usize, const W: usize, const AHEAD: usize>(
    s: S,
    p: &Product,
    i: usize,
    j: usize,
    ahead: usize,
) {
    // SAFETY: the rows of A and B lie within the product and are k long.
    unsafe {
        let (a, b) = (p.a_row(i), p.b_row(j));
        let next = b.wrapping_add((W + ahead) * p.ldb); // perhaps past the end
        let mut acc = [[s.splat(0.0); W]; M];
        let mut at = 0;
        while at + S::LANES <= p.k {
            let mut columns = [s.splat(0.0); W];
            for w in 0..W {
                columns[w] = s.load(b.add(w * p.ldb + at));
            }
            for row in 0..AHEAD {
                s.prefetch(next.wrapping_add(row * p.ldb + at));
            }
            for m in 0..M {
                let row = s.load(a.add(m * p.lda + at));
                for w in 0..W {
                    acc[m][w] = s.mul_add(row, columns[w], acc[m][w]);
                }
            }
            at += S::LANES;
        }
        let rest = p.k - at;
        if rest > 0 {
            let mut columns = [s.splat(0.0); W];
            for w in 0..W {
                columns[w] = s.load_part(b.add(w * p.ldb + at), rest);
            }
            for m in 0..M {
                let row = s.load_part(a.add(m * p.lda + at), rest);
                for w in 0..W {
                    acc[m][w] = s.mul_add(row, columns[w], acc[m][w]);
                }
            }
        }
        for m in 0..M {
            if W == N {
                let sums = s.sum4([acc[m][0], acc[m][1 % W], acc[m][2 % W], acc[m][3 % W]]);
                p.c_at(i + m, j).copy_from_nonoverlapping(sums.as_ptr(), N);
            } else {
                for w in 0..W {
                    p.c_at(i + m, j + w).write(s.sum(acc[m][w]));
                }
            }
        }
    }
}

/// A block of C for many rows: a block of A, and the columns of B four at a
/// time, are copied so that tiles read aligned memory in order. The copies are
/// filled up with zeros, so that every tile is whole.
struct Packed<'a> {
    product: &'a Product,
    rows: Range<usize>,
    columns: Range<usize>,
    /// Room for the copies.
    scratch: *mut f32,
}

impl Kernel for Packed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the block lies within the product, no other thread has it,
        // and `compute` made the scratch large enough: up to M - 1 rows more
        // than the block has and N columns, each up to LANES - 1 longer than k.
        unsafe {
            if S::REGISTERS >= 32 {
                packed::<S, 6>(s, self.product, self.rows, self.columns, self.scratch);
            } else {
                packed::<S, 2>(s, self.product, self.rows, self.columns, self.scratch);
            }
        }
    }
}

/// # Safety
/// The block lies within the product, its part of C is the caller's, and
/// `scratch` has room for its rows, rounded up to `M`, and for `N` columns,
/// with k rounded up to `LANES`.
#[inline(always)]
unsafe fn packed<S: Simd, const M: usize>(
    s: S,
    product: &Product,
    rows: Range<usize>,
    columns: Range<usize>,
    scratch: *mut f32,
) {
    let n_steps = product.k.div_ceil(S::LANES);
    let (a_tile, b_panel) = (n_steps * S::LANES * M, n_steps * S::LANES * N);
    // SAFETY: scratch has room for the panel of B and then all tiles of A; rows
    // and columns lie within the product.
    unsafe {
        let (b_copy, a_copy) = (scratch, scratch.add(b_panel));
        for (t, i) in rows.clone().step_by(M).enumerate() {
            let height = M.min(rows.end - i);
            pack::<S, M>(
                s,
                product.k,
                height,
                product.a_row(i),
                product.lda,
                a_copy.add(t * a_tile),
            );
        }
        for j in columns.clone().step_by(N) {
            let width = N.min(columns.end - j);
            pack::<S, N>(s, product.k, width, product.b_row(j), product.ldb, b_copy);
            for (t, i) in rows.clone().step_by(M).enumerate() {
                // The tiles share in prefetching the next panel.
                let next = product.b.wrapping_add((j + N + t % N) * product.ldb);
                let sums = packed_tile::<S, M>(s, n_steps, a_copy.add(t * a_tile), b_copy, next);
                for m in 0..M.min(rows.end - i) {
                    product
                        .c_at(i + m, j)
                        .copy_from_nonoverlapping(sums[m].as_ptr(), width);
                }
            }
        }
    }
}

/// Copies `height <= R` rows of length `k`, and zeros for the missing ones, to
/// `to[step][R][LANES]`.
///
/// # Safety
/// The rows are valid for reads, `to` for writes of R rows with k rounded up.
#[inline(always)]
unsafe fn pack<S: Simd, const R: usize>(
    s: S,
    k: usize,
    height: usize,
    from: *const f32,
    stride: usize,
    to: *mut f32,
) {
    let n_steps = k.div_ceil(S::LANES);
    for r in 0..R {
        for step in 0..n_steps {
            let at = step * S::LANES;
            // SAFETY: within row r, of which k - at values are left, and
            // within `to`.
            unsafe {
                let v = if r >= height {
                    s.splat(0.0)
                } else if at + S::LANES <= k {
                    s.load(from.add(r * stride + at))
                } else {
                    s.load_part(from.add(r * stride + at), k - at)
                };
                s.store(to.add((step * R + r) * S::LANES), v);
            }
        }
    }
}

/// The elements of a tile from packed operands. Prefetches the row `next`.
///
/// # Safety
/// `a` holds `n_steps` of M vectors, `b` of N vectors.
#[inline(always)]
unsafe fn packed_tile<S: Simd, const M: usize>(
    s: S,
    n_steps: usize,
    a: *const f32,
    b: *const f32,
    next: *const f32,
) -> [[f32; N]; M] {
    let mut acc = [[s.splat(0.0); N]; M];
    for step in 0..n_steps {
        // SAFETY: within the packed operands.
        unsafe {
            s.prefetch(next.wrapping_add(step * S::LANES));
            let (a, b) = (a.add(step * M * S::LANES), b.add(step * N * S::LANES));
            let mut columns = [s.splat(0.0); N];
            for w in 0..N {
                columns[w] = s.load(b.add(w * S::LANES));
            }
            for m in 0..M {
                let row = s.load(a.add(m * S::LANES));
                for w in 0..N {
                    acc[m][w] = s.mul_add(row, columns[w], acc[m][w]);
                }
            }
        }
    }
    let mut sums = [[0.0; N]; M];
    for m in 0..M {
        sums[m] = s.sum4(acc[m]);
    }
    sums
}

#[cfg(test)]
mod tests;
