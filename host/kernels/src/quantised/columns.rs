//! Quantised weights as the operand B: unpacked into registers for few rows of
//! A, and into a panel that stays in the cache for more.

use std::ops::Range;

use super::{AT_ONCE, BLOCK, Bits, Quantised};
use crate::{
    matmul::{Columns, N, Product},
    simd::Simd,
};

/// How far ahead of its use a line is asked for, in words.
const AHEAD: usize = 1024;

/// One of [`Bits`].
trait Unpack {
    /// Words of a block of N rows.
    const WORDS: usize;
    /// A row's scale and bias as `load` needs them.
    type Affine<S: Simd>: Copy;
    fn affine<S: Simd>(s: S, scale: f32, bias: f32) -> Self::Affine<S>;
    /// `LANES` columns from `at` on of row `r` of a block.
    ///
    /// # Safety
    /// `block` is one, `r` is below N, and `at` is a multiple of `LANES` and
    /// below BLOCK.
    unsafe fn load<S: Simd>(
        s: S,
        block: *const u32,
        r: usize,
        at: usize,
        by: Self::Affine<S>,
    ) -> S::V;
}

struct Four;
struct Eight;

impl Unpack for Four {
    const WORDS: usize = N * BLOCK / 8;
    type Affine<S: Simd> = S::Affine;

    #[inline(always)]
    fn affine<S: Simd>(s: S, scale: f32, bias: f32) -> S::Affine {
        s.affine(scale, bias)
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, block: *const u32, r: usize, at: usize, by: S::Affine) -> S::V {
        // SAFETY: a block has 16 words, and no vector is longer.
        unsafe { s.load_4_bits(block.add(at % 16), (8 * r + 4 * (at / 16)) as u32, by) }
    }
}

impl Unpack for Eight {
    const WORDS: usize = N * BLOCK / 4;
    type Affine<S: Simd> = [S::V; 2];

    #[inline(always)]
    fn affine<S: Simd>(s: S, scale: f32, bias: f32) -> [S::V; 2] {
        [s.splat(scale), s.splat(bias)]
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, block: *const u32, r: usize, at: usize, by: [S::V; 2]) -> S::V {
        // SAFETY: a row of a block has BLOCK bytes.
        let q = unsafe { s.load_8_bits(block.cast::<u8>().add(r * BLOCK + at)) };
        // The product is exact, so fused or not the sum is rounded once.
        s.mul_add(by[0], q, by[1])
    }
}

impl Columns for &Quantised {
    const DIRECT_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn direct<S: Simd>(s: S, product: &Product<Self>, columns: Range<usize>) {
        // SAFETY: as promised to this function.
        unsafe {
            match product.b.bits {
                Bits::Four => direct::<S, Four>(s, product, columns),
                Bits::Eight => direct::<S, Eight>(s, product, columns),
            }
        }
    }

    #[inline(always)]
    unsafe fn panel<S: Simd>(&self, s: S, _: usize, j: usize, _: usize, to: *mut f32) {
        // SAFETY: as promised to this function; the panel is filled up.
        unsafe {
            match self.bits {
                Bits::Four => unpack_panel::<S, Four>(s, self, j, to),
                Bits::Eight => unpack_panel::<S, Eight>(s, self, j, to),
            }
        }
    }

    /// The next panel, whose bytes are at most those of k values.
    #[inline(always)]
    fn ahead(&self, j: usize, _: usize) -> *const f32 {
        self.panel_words(j + N).cast()
    }
}

/// # Safety
/// As for [`Columns::direct`].
#[inline(always)]
unsafe fn direct<S: Simd, U: Unpack>(s: S, product: &Product<&Quantised>, columns: Range<usize>) {
    for j in columns.clone().step_by(N) {
        let width = N.min(columns.end - j);
        // SAFETY: rows 0 to m, and columns j to j + width, are the caller's.
        unsafe {
            match product.m {
                1 => tile::<S, U, 1>(s, product, 0, j, width),
                2 => tile::<S, U, 2>(s, product, 0, j, width),
                3 if S::REGISTERS >= 32 => tile::<S, U, 3>(s, product, 0, j, width),
                _ if S::REGISTERS >= 32 => tile::<S, U, 4>(s, product, 0, j, width),
                n_rows => {
                    tile::<S, U, 2>(s, product, 0, j, width);
                    tile::<S, U, 2>(s, product, n_rows - 2, j, width);
                }
            }
        }
    }
}

/// `M` rows by `width` columns of C from (`i`, `j`).
///
/// # Safety
/// They lie within the product, and this part of C is the caller's.
#[inline(always)]
unsafe fn tile<S: Simd, U: Unpack, const M: usize>(
    s: S,
    p: &Product<&Quantised>,
    i: usize,
    j: usize,
    width: usize,
) {
    let weights = p.b;
    let words = weights.panel_words(j);
    let mut acc = [[s.splat(0.0); N]; M];
    // SAFETY: the panel has n_blocks blocks; rows of A are that many blocks
    // long.
    unsafe {
        let a = p.a_row(i);
        let mut groups = Groups::new(weights, j);
        for block in 0..weights.n_blocks() {
            let by = groups.affine::<S, U>(s, block);
            let (words, a) = (words.add(block * U::WORDS), a.add(block * BLOCK));
            for line in 0..U::WORDS / 16 {
                s.prefetch(words.wrapping_add(AHEAD + line * 16).cast());
            }
            let mut at = 0;
            while at < BLOCK {
                let mut columns = [s.splat(0.0); N];
                for w in 0..N {
                    columns[w] = U::load(s, words, w, at, by[w]);
                }
                for m in 0..M {
                    let row = s.load(a.add(m * p.lda + at));
                    for w in 0..N {
                        acc[m][w] = s.mul_add(row, columns[w], acc[m][w]);
                    }
                }
                at += S::LANES;
            }
        }
        for m in 0..M {
            p.put(i + m, j, width, s.sum4(acc[m]));
        }
    }
}

/// The panel of row `j` in f32.
///
/// # Safety
/// As for [`Columns::panel`].
#[inline(always)]
unsafe fn unpack_panel<S: Simd, U: Unpack>(s: S, weights: &Quantised, j: usize, to: *mut f32) {
    let words = weights.panel_words(j);
    let mut groups = Groups::new(weights, j);
    for block in 0..weights.n_blocks() {
        let by = groups.affine::<S, U>(s, block);
        // SAFETY: the panel has this block, and so has `to`.
        unsafe {
            let (words, to) = (words.add(block * U::WORDS), to.add(block * BLOCK * N));
            let mut at = 0;
            while at < BLOCK {
                for w in 0..N {
                    let columns = U::load(s, words, w, at, by[w]);
                    s.store(to.add(at * N + w * S::LANES), columns);
                }
                at += S::LANES;
            }
        }
    }
}

/// One row in f32.
///
/// # Safety
/// The matrix has the row, and `to` is valid for writes of its columns.
#[inline(always)]
pub(super) unsafe fn unpack_row<S: Simd>(s: S, weights: &Quantised, row: usize, to: *mut f32) {
    // SAFETY: as promised to this function.
    unsafe {
        match weights.bits {
            Bits::Four => unpack_columns::<S, Four>(s, weights, row, to),
            Bits::Eight => unpack_columns::<S, Eight>(s, weights, row, to),
        }
    }
}

/// # Safety
/// As for [`unpack_row`].
#[inline(always)]
unsafe fn unpack_columns<S: Simd, U: Unpack>(s: S, weights: &Quantised, row: usize, to: *mut f32) {
    let (j, r) = (row / N * N, row % N);
    let words = weights.panel_words(j);
    let mut groups = Groups::new(weights, j);
    for block in 0..weights.n_blocks() {
        let by = groups.affine::<S, U>(s, block)[r];
        let mut at = 0;
        while at < BLOCK {
            // SAFETY: the row has this block, and so has `to`.
            unsafe {
                let words = words.add(block * U::WORDS);
                s.store(to.add(block * BLOCK + at), U::load(s, words, r, at, by));
            }
            at += S::LANES;
        }
    }
}

/// Scales and biases of a panel, widened some groups at a time.
struct Groups<'a> {
    weights: &'a Quantised,
    j: usize,
    wide: [f32; AT_ONCE * 2 * N],
}

impl<'a> Groups<'a> {
    #[inline(always)]
    fn new(weights: &'a Quantised, j: usize) -> Self {
        Self {
            weights,
            j,
            wide: [0.0; AT_ONCE * 2 * N],
        }
    }

    /// Those of each row of a block. Blocks must be asked for in order.
    #[inline(always)]
    fn affine<S: Simd, U: Unpack>(&mut self, s: S, block: usize) -> [U::Affine<S>; N] {
        let group = block >> self.weights.group_shift;
        if block & ((AT_ONCE << self.weights.group_shift) - 1) == 0 {
            self.wide = self.weights.panel_scales(self.j, group);
        }
        let start = group % AT_ONCE * 2 * N;
        let mut by = [U::affine(s, 0.0, 0.0); N];
        for w in 0..N {
            by[w] = U::affine(s, self.wide[start + w], self.wide[start + N + w]);
        }
        by
    }
}
