//! Weights in f32. In products of few rows the operands are read where they
//! lie: B comes from memory once; A stays in the cache.

use std::ops::Range;

use super::{Columns, N, Product, packed::pack};
use crate::simd::Simd;

/// Rows of f32 in memory.
pub(crate) struct Dense {
    pub(crate) data: *const f32,
    /// Values from one row to the next.
    pub(crate) stride: usize,
}

// SAFETY: it is only read, under the terms of `Product::compute`.
unsafe impl Sync for Dense {}

impl Dense {
    /// # Safety
    /// `j` is one of the rows.
    #[inline(always)]
    unsafe fn row(&self, j: usize) -> *const f32 {
        // SAFETY: within the matrix, says the caller.
        unsafe { self.data.add(j * self.stride) }
    }
}

impl Columns for Dense {
    const DIRECT_ROWS: usize = 23;

    #[inline(always)]
    unsafe fn direct<S: Simd>(s: S, product: &Product<Self>, columns: Range<usize>) {
        // SAFETY: as promised to this function.
        unsafe {
            if S::REGISTERS >= 32 {
                direct::<S, 4>(s, product, columns);
            } else {
                direct::<S, 2>(s, product, columns);
            }
        }
    }

    #[inline(always)]
    unsafe fn panel<S: Simd>(&self, s: S, k: usize, j: usize, width: usize, to: *mut f32) {
        // SAFETY: as promised to this function.
        unsafe { pack::<S, N>(s, k, width, self.row(j), self.stride, to) };
    }

    /// The tiles share in prefetching the next panel.
    #[inline(always)]
    fn ahead(&self, j: usize, tile: usize) -> *const f32 {
        self.data.wrapping_add((j + N + tile % N) * self.stride)
    }
}

/// # Safety
/// `columns` lies within the product, and its part of C is the caller's.
#[inline(always)]
unsafe fn direct<S: Simd, const M: usize>(s: S, product: &Product<Dense>, columns: Range<usize>) {
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
    product: &Product<Dense>,
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
    p: &Product<Dense>,
    i: usize,
    j: usize,
    ahead: usize,
) {
    // SAFETY: the rows of A and B lie within the product and are k long.
    unsafe {
        let (a, b) = (p.a_row(i), p.b.row(j));
        let next = b.wrapping_add((W + ahead) * p.b.stride); // perhaps past the end
        let mut acc = [[s.splat(0.0); W]; M];
        let mut at = 0;
        while at + S::LANES <= p.k {
            let mut columns = [s.splat(0.0); W];
            for w in 0..W {
                columns[w] = s.load(b.add(w * p.b.stride + at));
            }
            for row in 0..AHEAD {
                s.prefetch(next.wrapping_add(row * p.b.stride + at));
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
                columns[w] = s.load_part(b.add(w * p.b.stride + at), rest);
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
