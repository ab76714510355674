//! Weights of 4 or 8 bits in groups that share a scale and a bias, and products
//! with them that read them as they are.
//!
//! A weight is `scale · q + bias`, rounded once. Products have the bits that
//! [`matmul_nt`](crate::matmul_nt) has with the same weights in f32.
//!
//! In memory the rows stand in panels of [`N`], the last one filled up, and
//! those in blocks of 32 columns, in the order in which a tile reads them:
//!
//! ```text
//! words, 4 bits:  [panel][block][16]         word l has row r's columns l and l + 16
//!                                            in its bits 8·r to 8·r + 7
//! words, 8 bits:  [panel][block][N][32]      bytes
//! scales:         [panel][group][2][N]       scale, bias
//! ```

mod columns;
mod half;

use std::{
    alloc::{Layout, handle_alloc_error},
    ops::Range,
    slice,
};

use crate::{
    buffer::Buffer,
    matmul::{N, Product, maxima_of},
    pages,
    pool::Pool,
    simd::{Kernel, Level, Simd},
};

/// Columns of a block.
const BLOCK: usize = 32;
/// Groups whose scales are widened at once.
const AT_ONCE: usize = 8;
/// Above this a product with q might not be finite.
const LARGEST_SCALE: f32 = 1e30;

/// How weights are quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// Columns that share a scale and a bias: 32, 64 or 128.
    pub group_size: usize,
    /// Bits of a weight: 4 or 8.
    pub n_bits: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bits {
    Four,
    Eight,
}

/// Scales and biases in the smaller type that holds them all exactly. Ends with
/// as many zeros as are widened at once.
enum Scales {
    Half(Vec<u16>),
    Single(Vec<f32>),
}

/// A matrix `[n, k]` of quantised weights.
pub struct Quantised {
    n: usize,
    k: usize,
    bits: Bits,
    /// Blocks of a group, as a power of two.
    group_shift: u32,
    words: Buffer,
    scales: Scales,
}

impl Quantised {
    /// The matrix `[n, k]` from rows as MLX stores them: `words` is
    /// `[n, k · n_bits / 32]`, the first columns in the low bits; `scales` and
    /// `biases` are `[n, k / group_size]`.
    ///
    /// None if the format is not one of [`Format`]'s, if k is no multiple of the
    /// group's size, or if a scale is not finite or so precise that its product
    /// with q would have to be rounded. Those of half precision never are.
    ///
    /// # Panics
    /// When a slice is not as long as its shape says.
    pub fn new(
        [n, k]: [usize; 2],
        format: Format,
        words: &[u32],
        scales: &[f32],
        biases: &[f32],
    ) -> Option<Self> {
        let Format { group_size, n_bits } = format;
        let bits = match n_bits {
            4 => Bits::Four,
            8 => Bits::Eight,
            _ => return None,
        };
        if ![32, 64, 128].contains(&group_size) || !k.is_multiple_of(group_size) {
            return None;
        }
        let n_groups = k / group_size;
        assert_eq!(words.len(), n * k * n_bits / 32, "words of {n} x {k}");
        assert_eq!(scales.len(), n * n_groups, "scales of {n} x {k}");
        assert_eq!(biases.len(), n * n_groups, "biases of {n} x {k}");
        let exact = |scale: &f32| {
            scale.abs() <= LARGEST_SCALE && scale.to_bits().trailing_zeros() as usize >= n_bits
        };
        if !scales.iter().all(exact) || !biases.iter().all(|bias| bias.is_finite()) {
            return None;
        }
        Some(Self {
            n,
            k,
            bits,
            group_shift: (group_size / BLOCK).ilog2(),
            words: match bits {
                Bits::Four => in_panels_of_4_bits(n, k, words),
                Bits::Eight => in_panels_of_8_bits(n, k, words),
            },
            scales: Scales::new(in_panels(n, n_groups, scales, biases)),
        })
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    /// Where it lies, for [`pages`](crate::pages).
    pub fn memory(&self) -> [Range<usize>; 2] {
        let scales = match &self.scales {
            Scales::Half(scales) => pages::memory(scales),
            Scales::Single(scales) => pages::memory(scales),
        };
        [pages::memory(self.words.as_slice()), scales]
    }

    /// The memory it takes.
    pub fn n_bytes(&self) -> usize {
        let scales = match &self.scales {
            Scales::Half(scales) => 2 * scales.len(),
            Scales::Single(scales) => 4 * scales.len(),
        };
        4 * self.words.len() + scales
    }

    /// C\[m, n\] = A\[m, k\] · Wᵀ, all row-major and without gaps.
    ///
    /// # Panics
    /// When a slice is not as long as its shape says.
    pub fn matmul_nt(&self, m: usize, a: &[f32], c: &mut [f32]) {
        self.matmul_nt_on(Level::best(), Pool::shared(), m, a, c, None);
    }

    /// [`logits_nt`](crate::logits_nt) with these weights.
    ///
    /// # Panics
    /// When a slice is not as long as its shape says.
    pub fn logits_nt(&self, m: usize, a: &[f32], (c, maxima): (&mut [f32], &mut [f32])) {
        self.matmul_nt_on(Level::best(), Pool::shared(), m, a, c, Some(maxima));
    }

    fn matmul_nt_on(
        &self,
        level: Level,
        pool: &Pool,
        m: usize,
        a: &[f32],
        c: &mut [f32],
        maxima: Option<&mut [f32]>,
    ) {
        let Self { n, k, .. } = *self;
        assert_eq!(Some(a.len()), m.checked_mul(k), "A is not {m} x {k}");
        assert_eq!(Some(c.len()), m.checked_mul(n), "C is not {m} x {n}");
        let product = Product {
            m,
            n,
            k,
            a: a.as_ptr(),
            lda: k,
            b: self,
            c: c.as_mut_ptr(),
            ldc: n,
            maxima: maxima.map(|maxima| maxima_of([m, n], maxima)),
        };
        // SAFETY: the slices hold what the shapes say, C is borrowed mutably,
        // and a matrix has the sides it says.
        unsafe { product.compute(level, pool) };
    }

    /// The rows `ids`, one after the other, into `out`.
    ///
    /// # Panics
    /// When there is no such row, or `out` is not as long as the rows.
    pub fn rows(&self, ids: &[u32], out: &mut [f32]) {
        self.rows_on(Level::best(), ids, out);
    }

    fn rows_on(&self, level: Level, ids: &[u32], out: &mut [f32]) {
        assert_eq!(Some(out.len()), ids.len().checked_mul(self.k), "rows");
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(self.k.max(1))) {
            assert!((id as usize) < self.n, "row {id} of {}", self.n);
            level.run(OneRow {
                matrix: self,
                row: id as usize,
                out,
            });
        }
    }

    fn n_blocks(&self) -> usize {
        self.k / BLOCK
    }

    fn n_groups(&self) -> usize {
        self.n_blocks() >> self.group_shift
    }

    /// The words from the panel of row `j` on, or after the end.
    #[inline(always)]
    fn panel_words(&self, j: usize) -> *const u32 {
        let n_bits = if self.bits == Bits::Four { 4 } else { 8 };
        let n_words = self.k * N * n_bits / 32;
        self.words
            .as_mut_ptr()
            .cast_const()
            .cast::<u32>()
            .wrapping_add(j / N * n_words)
    }

    /// Scales and biases of [`AT_ONCE`] groups of the panel of row `j`; beyond
    /// the panel's last group they mean nothing.
    #[inline(always)]
    fn panel_scales(&self, j: usize, group: usize) -> [f32; AT_ONCE * 2 * N] {
        let start = (j / N * self.n_groups() + group) * 2 * N;
        let mut wide = [0.0; AT_ONCE * 2 * N];
        match &self.scales {
            Scales::Half(scales) => {
                for (wide, &half) in wide.iter_mut().zip(&scales[start..start + AT_ONCE * 2 * N]) {
                    *wide = half::to_f32(half);
                }
            }
            Scales::Single(scales) => {
                wide.copy_from_slice(&scales[start..start + AT_ONCE * 2 * N]);
            }
        }
        wide
    }
}

impl Scales {
    fn new(scales: Vec<f32>) -> Self {
        let halves: Option<Vec<u16>> = scales.iter().map(|&x| half::from_f32(x)).collect();
        halves.map_or(Self::Single(scales), Self::Half)
    }
}

/// Scales and biases in their final order.
fn in_panels(n: usize, n_groups: usize, scales: &[f32], biases: &[f32]) -> Vec<f32> {
    let panels = n.div_ceil(N) * n_groups;
    let mut out = vec![0.0; (panels + AT_ONCE) * 2 * N];
    for j in 0..n {
        for group in 0..n_groups {
            let to = (j / N * n_groups + group) * 2 * N + j % N;
            out[to] = scales[j * n_groups + group];
            out[to + N] = biases[j * n_groups + group];
        }
    }
    out
}

fn in_panels_of_4_bits(n: usize, k: usize, words: &[u32]) -> Buffer {
    filled(n.next_multiple_of(N) * k / 8, |out| {
        for (j, row) in words.chunks_exact((k / 8).max(1)).enumerate() {
            for (block, words) in row.chunks_exact(BLOCK / 8).enumerate() {
                let start = (j / N * (k / BLOCK) + block) * (N * BLOCK / 8);
                for (l, out) in out[start..start + 16].iter_mut().enumerate() {
                    let q = |column: usize| words[column / 8] >> (4 * (column % 8)) & 15;
                    *out |= (q(l) | q(l + 16) << 4) << (8 * (j % N));
                }
            }
        }
    })
}

fn in_panels_of_8_bits(n: usize, k: usize, words: &[u32]) -> Buffer {
    filled(n.next_multiple_of(N) * k / 4, |out| {
        for (j, row) in words.chunks_exact((k / 4).max(1)).enumerate() {
            for (block, words) in row.chunks_exact(BLOCK / 4).enumerate() {
                let start = ((j / N * (k / BLOCK) + block) * N + j % N) * (BLOCK / 4);
                for (out, word) in out[start..].iter_mut().zip(words) {
                    *out = word.to_le(); // bytes in the order of columns
                }
            }
        }
    })
}

/// Words that `fill` is given as zeros.
fn filled(n_words: usize, fill: impl FnOnce(&mut [u32])) -> Buffer {
    let Some(buffer) = Buffer::new(n_words) else {
        handle_alloc_error(Layout::new::<u32>())
    };
    // SAFETY: the buffer has that many f32, which are as large and as aligned
    // as u32, have no bits without a meaning, and are nobody else's yet.
    fill(unsafe { slice::from_raw_parts_mut(buffer.as_mut_ptr().cast(), n_words) });
    buffer
}

/// One row in f32.
struct OneRow<'a> {
    matrix: &'a Quantised,
    row: usize,
    out: &'a mut [f32],
}

impl Kernel for OneRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: made by `rows_on`, which checks the row and the length.
        unsafe { columns::unpack_row(s, self.matrix, self.row, self.out.as_mut_ptr()) };
    }
}

#[cfg(test)]
mod tests;
