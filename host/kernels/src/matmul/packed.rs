//! Products of many rows: A once, and the columns of B four at a time, are
//! copied, or unpacked, so that tiles read aligned memory in order. The copies
//! are filled up with zeros, so that every tile is whole.

use std::ops::Range;

use super::{Columns, N, Product};
use crate::simd::{Kernel, Simd};

/// The highest tile, and the longest vector.
const MOST_ROWS: usize = 6;
const MOST_LANES: usize = 16;
/// Columns of A and B that tiles go through at once: so much of a tile and a
/// panel fits in the first-level cache.
const DEPTH: usize = 768;

/// Values that the copy of all of A needs.
pub(super) fn a_len(m: usize, k: usize) -> usize {
    m.next_multiple_of(MOST_ROWS) * k.next_multiple_of(MOST_LANES)
}

/// Values that a panel of B, and the sums of `height` rows with it, need.
pub(super) fn panel_len(height: usize, k: usize) -> usize {
    let sums = height.next_multiple_of(MOST_ROWS) * MOST_LANES;
    N * (k.next_multiple_of(MOST_LANES) + sums)
}

/// Rows of a tile in a product of `m` rows: so many that the fewest of the last
/// one are empty, where those are a good part.
pub(super) struct TileHeight {
    pub(super) m: usize,
}

impl Kernel for TileHeight {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        tile_height::<S>(self.m)
    }
}

#[inline(always)]
fn tile_height<S: Simd>(m: usize) -> usize {
    if S::REGISTERS < 32 {
        return 2;
    }
    if m >= 32 {
        return MOST_ROWS;
    }
    let rows = |height: &usize| m.next_multiple_of(*height);
    (4..=MOST_ROWS).rev().min_by_key(rows).unwrap_or(MOST_ROWS)
}

/// The copy of some tiles of A.
pub(super) struct PackA<'a, B> {
    product: &'a Product<B>,
    tiles: Range<usize>,
    /// The copy of all of A.
    to: *mut f32,
}

impl<'a, B> PackA<'a, B> {
    /// # Safety
    /// The product is valid and has the tiles, and the caller those of
    /// [`a_len`] values at `to`.
    pub(super) unsafe fn new(product: &'a Product<B>, tiles: Range<usize>, to: *mut f32) -> Self {
        Self { product, tiles, to }
    }
}

impl<B: Columns> Kernel for PackA<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: as promised to `new`.
        unsafe {
            match tile_height::<S>(self.product.m) {
                2 => self.pack::<S, 2>(s),
                4 => self.pack::<S, 4>(s),
                5 => self.pack::<S, 5>(s),
                _ => self.pack::<S, MOST_ROWS>(s),
            }
        }
    }
}

impl<B: Columns> PackA<'_, B> {
    /// # Safety
    /// As for `new`; `M` is the height of a tile.
    #[inline(always)]
    unsafe fn pack<S: Simd, const M: usize>(self, s: S) {
        let Product { m, k, lda, .. } = *self.product;
        let tile_len = k.next_multiple_of(S::LANES) * M;
        for t in self.tiles {
            let height = M.min(m - t * M);
            // SAFETY: row t * M is one of A's, and the copy has room for tile t.
            unsafe {
                let to = self.to.add(t * tile_len);
                pack::<S, M>(s, k, height, self.product.a_row(t * M), lda, to);
            }
        }
    }
}

/// A block of C.
pub(super) struct Packed<'a, B> {
    product: &'a Product<B>,
    tiles: Range<usize>,
    columns: Range<usize>,
    a: *const f32,
    /// Room for a panel and sums.
    scratch: *mut f32,
}

impl<'a, B: Columns> Packed<'a, B> {
    /// # Safety
    /// The tiles and columns lie within a valid product, their part of C is the
    /// caller's, and so are [`panel_len`] values at `scratch`; `a` is the copy
    /// of A.
    pub(super) unsafe fn new(
        product: &'a Product<B>,
        tiles: Range<usize>,
        columns: Range<usize>,
        a: *const f32,
        scratch: *mut f32,
    ) -> Self {
        Self {
            product,
            tiles,
            columns,
            a,
            scratch,
        }
    }
}

impl<B: Columns> Kernel for Packed<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: as promised to `new`.
        unsafe {
            match tile_height::<S>(self.product.m) {
                2 => self.compute::<S, 2>(s),
                4 => self.compute::<S, 4>(s),
                5 => self.compute::<S, 5>(s),
                _ => self.compute::<S, MOST_ROWS>(s),
            }
        }
    }
}

impl<B: Columns> Packed<'_, B> {
    /// # Safety
    /// As for `new`; `M` is the height of a tile.
    #[inline(always)]
    unsafe fn compute<S: Simd, const M: usize>(&self, s: S) {
        let k = self.product.k;
        let n_steps = k.div_ceil(S::LANES);
        let sums = self.scratch.wrapping_add(n_steps * S::LANES * N);
        for j in self.columns.clone().step_by(N) {
            let width = N.min(self.columns.end - j);
            // SAFETY: the columns are some of the product's; the scratch has
            // room for the panel and then for the sums of all tiles.
            unsafe {
                self.product.b.panel(s, k, j, width, self.scratch);
                let mut start = 0;
                // A product of no depth has sums as well.
                while start < n_steps.max(1) {
                    let steps = start..n_steps.min(start + DEPTH / S::LANES);
                    start = steps.end.max(1);
                    for (i, t) in self.tiles.clone().enumerate() {
                        let sums = sums.add(i * M * N * S::LANES);
                        let next = self
                            .product
                            .b
                            .ahead(j, i)
                            .wrapping_add(steps.start * S::LANES);
                        let mut acc = if steps.start == 0 {
                            [[s.splat(0.0); N]; M]
                        } else {
                            load::<S, M>(s, sums)
                        };
                        let a = self.a.add(t * M * n_steps * S::LANES);
                        acc = packed_tile(s, acc, steps.clone(), a, self.scratch, next);
                        if steps.end < n_steps {
                            store(s, acc, sums);
                            continue;
                        }
                        for m in 0..M.min(self.product.m - t * M) {
                            self.product.put(t * M + m, j, width, s.sum4(acc[m]));
                        }
                    }
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

/// Adds the products of some steps of packed operands to the sums of a tile.
/// Prefetches as much from `next` on.
///
/// # Safety
/// `a` holds M vectors for each step, `b` N vectors.
#[inline(always)]
unsafe fn packed_tile<S: Simd, const M: usize>(
    s: S,
    mut acc: [[S::V; N]; M],
    steps: Range<usize>,
    a: *const f32,
    b: *const f32,
    next: *const f32,
) -> [[S::V; N]; M] {
    for (i, step) in steps.enumerate() {
        // SAFETY: within the packed operands.
        unsafe {
            s.prefetch(next.wrapping_add(i * S::LANES));
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
    acc
}

/// # Safety
/// `from` is valid for reads of these vectors.
#[inline(always)]
unsafe fn load<S: Simd, const M: usize>(s: S, from: *const f32) -> [[S::V; N]; M] {
    let mut acc = [[s.splat(0.0); N]; M];
    for m in 0..M {
        for w in 0..N {
            // SAFETY: as promised to this function.
            acc[m][w] = unsafe { s.load(from.add((m * N + w) * S::LANES)) };
        }
    }
    acc
}

/// # Safety
/// `to` is valid for writes of these vectors.
#[inline(always)]
unsafe fn store<S: Simd, const M: usize>(s: S, acc: [[S::V; N]; M], to: *mut f32) {
    for m in 0..M {
        for w in 0..N {
            // SAFETY: as promised to this function.
            unsafe { s.store(to.add((m * N + w) * S::LANES), acc[m][w]) };
        }
    }
}
