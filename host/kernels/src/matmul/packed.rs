//! Products of many rows: a block of A, and the columns of B four at a time,
//! are copied, or unpacked, so that tiles read aligned memory in order. The
//! copies are filled up with zeros, so that every tile is whole.

use std::ops::Range;

use super::{Columns, N, Product};
use crate::simd::{Kernel, Simd};

/// The highest tile, and the longest vector.
const MOST_ROWS: usize = 6;
const MOST_LANES: usize = 16;

/// Values that the copies of `height` rows of A and of `N` rows of B need.
pub(super) fn scratch_len(height: usize, k: usize) -> usize {
    (height.next_multiple_of(MOST_ROWS) + N) * k.next_multiple_of(MOST_LANES)
}

/// A block of C.
pub(super) struct Packed<'a, B> {
    product: &'a Product<B>,
    rows: Range<usize>,
    columns: Range<usize>,
    /// Room for the copies.
    scratch: *mut f32,
}

impl<'a, B: Columns> Packed<'a, B> {
    /// # Safety
    /// The block lies within a valid product, its part of C is the caller's,
    /// and so are [`scratch_len`] values at `scratch`.
    pub(super) unsafe fn new(
        product: &'a Product<B>,
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

impl<B: Columns> Kernel for Packed<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (rows, columns) = (self.rows, self.columns);
        // SAFETY: as promised to `new`; no height rounds the rows up further
        // than `MOST_ROWS` does.
        unsafe {
            if S::REGISTERS < 32 {
                return packed::<S, B, 2>(s, self.product, rows, columns, self.scratch);
            }
            match tile_height(rows.len()) {
                4 => packed::<S, B, 4>(s, self.product, rows, columns, self.scratch),
                5 => packed::<S, B, 5>(s, self.product, rows, columns, self.scratch),
                _ => packed::<S, B, MOST_ROWS>(s, self.product, rows, columns, self.scratch),
            }
        }
    }
}

/// The height that leaves the fewest empty rows, where those are a good part.
fn tile_height(n_rows: usize) -> usize {
    let heights = if n_rows < 32 {
        4..=MOST_ROWS
    } else {
        MOST_ROWS..=MOST_ROWS
    };
    let empty = |height: &usize| n_rows.next_multiple_of(*height);
    heights.rev().min_by_key(empty).unwrap_or(MOST_ROWS)
}

/// # Safety
/// The block lies within the product, its part of C is the caller's, and
/// `scratch` has room for its rows, rounded up to `M`, and for `N` columns,
/// with k rounded up to `LANES`.
#[inline(always)]
unsafe fn packed<S: Simd, B: Columns, const M: usize>(
    s: S,
    product: &Product<B>,
    rows: Range<usize>,
    columns: Range<usize>,
    scratch: *mut f32,
) {
    let k = product.k;
    let n_steps = k.div_ceil(S::LANES);
    let (a_tile, b_panel) = (n_steps * S::LANES * M, n_steps * S::LANES * N);
    // SAFETY: scratch has room for the panel of B and then all tiles of A; rows
    // and columns lie within the product.
    unsafe {
        let (b_copy, a_copy) = (scratch, scratch.add(b_panel));
        for (t, i) in rows.clone().step_by(M).enumerate() {
            let height = M.min(rows.end - i);
            let to = a_copy.add(t * a_tile);
            pack::<S, M>(s, k, height, product.a_row(i), product.lda, to);
        }
        for j in columns.clone().step_by(N) {
            let width = N.min(columns.end - j);
            product.b.panel(s, k, j, width, b_copy);
            for (t, i) in rows.clone().step_by(M).enumerate() {
                let next = product.b.ahead(j, t);
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
pub(super) unsafe fn pack<S: Simd, const R: usize>(
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
