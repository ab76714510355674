//! Products of many rows: a block of A, and the columns of B four at a time,
//! are copied so that tiles read aligned memory in order. The copies are filled
//! up with zeros, so that every tile is whole.

use std::ops::Range;

use super::{N, Product};
use crate::simd::{Kernel, Simd};

/// The highest tile, and the longest vector.
const MOST_ROWS: usize = 6;
const MOST_LANES: usize = 16;

/// Values that the copies of `height` rows of A and of `N` rows of B need.
pub(super) fn scratch_len(height: usize, k: usize) -> usize {
    (height.next_multiple_of(MOST_ROWS) + N) * k.next_multiple_of(MOST_LANES)
}

/// A block of C.
pub(super) struct Packed<'a> {
    product: &'a Product,
    rows: Range<usize>,
    columns: Range<usize>,
    /// Room for the copies.
    scratch: *mut f32,
}

impl<'a> Packed<'a> {
    /// # Safety
    /// The block lies within a valid product, its part of C is the caller's,
    /// and so are [`scratch_len`] values at `scratch`.
    pub(super) unsafe fn new(
        product: &'a Product,
        rows: Range<usize>,
        columns: Range<usize>,
        scratch: *mut f32,
    ) -> Self {
        Self {
            product,
            rows,
            columns,
            scratch,
        }
    }
}

impl Kernel for Packed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: as promised to `new`.
        unsafe {
            if S::REGISTERS >= 32 {
                packed::<S, MOST_ROWS>(s, self.product, self.rows, self.columns, self.scratch);
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
