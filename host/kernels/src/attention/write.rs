//! The first half of attention: a row's queries and keys are rotated, its keys
//! and values written to the cache.

use std::ops::Range;

use super::cache::{BLOCK, KvCache};
use crate::simd::{Kernel, Simd};

/// Rotates a layer's queries and keys and writes keys and values.
pub(super) struct Write<'a> {
    pub(super) cache: &'a KvCache,
    pub(super) layer: usize,
    pub(super) qkv: &'a [f32],
    pub(super) cos: &'a [f32],
    pub(super) sin: &'a [f32],
    pub(super) n_pairs: usize,
    pub(super) scale: f32,
    /// Where the rotated, scaled queries go.
    pub(super) queries: *mut f32,
}

// SAFETY: threads get different rows, and each writes its rows' queries, keys
// and values only; no two rows of a pass have the same position and slot.
unsafe impl Sync for Write<'_> {}

impl Write<'_> {
    pub(super) fn rows(&self, rows: Range<usize>) -> WriteRows<'_> {
        WriteRows { write: self, rows }
    }
}

pub(super) struct WriteRows<'a> {
    write: &'a Write<'a>,
    rows: Range<usize>,
}

impl Kernel for WriteRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for r in self.rows {
            write_row(s, self.write, r);
        }
    }
}

#[inline(always)]
fn write_row<S: Simd>(s: S, write: &Write<'_>, r: usize) {
    let (cache, n_pairs) = (write.cache, write.n_pairs);
    let shape = cache.shape();
    let d = shape.head_dim;
    let row = cache.rows()[r];
    let at = row.position % BLOCK;
    let x = &write.qkv[r * shape.qkv_width()..(r + 1) * shape.qkv_width()];
    let (q, kv) = x.split_at(shape.out_width());
    let (k, v) = kv.split_at(shape.n_kv_heads * d);
    let angles = [write.cos, write.sin].map(|table| &table[r * n_pairs..(r + 1) * n_pairs]);
    for h in 0..shape.n_heads {
        let from = &q[h * d..(h + 1) * d];
        // SAFETY: `queries` has room for all rows' query heads, and this one
        // is ours.
        unsafe {
            let to = write.queries.add(r * shape.out_width() + h * d);
            rotate(s, from, angles, write.scale, to, 1);
        }
    }
    for h in 0..shape.n_kv_heads {
        let head = h * d..(h + 1) * d;
        let keys = cache.keys(row, row.position, write.layer, h);
        let values = cache.values(row, row.position, write.layer, h);
        // SAFETY: the panels hold `head_dim` values for each of `BLOCK`
        // positions, and position `at` is ours.
        unsafe {
            rotate(s, &k[head.clone()], angles, 1.0, keys.add(at), BLOCK);
            values
                .add(at * d)
                .copy_from_nonoverlapping(v[head].as_ptr(), d);
        }
    }
}

/// Rotates the pairs (i, i + n_pairs) of a head by its angles, scales it all,
/// and writes a value at every `stride`th place of `to`.
///
/// # Safety
/// `to` is valid for these writes; the tables have n_pairs values, at most half
/// of the head.
#[inline(always)]
unsafe fn rotate<S: Simd>(
    s: S,
    from: &[f32],
    angles: [&[f32]; 2],
    scale: f32,
    to: *mut f32,
    stride: usize,
) {
    let [cos, sin] = angles;
    let n_pairs = cos.len();
    let factor = s.splat(scale);
    let mut i = 0;
    while i < n_pairs {
        let n = S::LANES.min(n_pairs - i);
        // SAFETY: n values from i are within the tables, and from i and
        // i + n_pairs within the head.
        unsafe {
            let a = s.mul(factor, s.load_part(from.as_ptr().add(i), n));
            let b = s.mul(factor, s.load_part(from.as_ptr().add(n_pairs + i), n));
            let c = s.load_part(cos.as_ptr().add(i), n);
            let d = s.load_part(sin.as_ptr().add(i), n);
            let (x, y) = (
                s.sub(s.mul(a, c), s.mul(b, d)),
                s.add(s.mul(b, c), s.mul(a, d)),
            );
            spread(s, x, n, to.add(i * stride), stride);
            spread(s, y, n, to.add((n_pairs + i) * stride), stride);
        }
        i += n;
    }
    for (i, x) in from.iter().enumerate().skip(2 * n_pairs) {
        // SAFETY: within the head.
        unsafe { to.add(i * stride).write(scale * x) };
    }
}

/// Writes the first `n` lanes `stride` apart.
///
/// # Safety
/// `to` is valid for these writes.
#[inline(always)]
unsafe fn spread<S: Simd>(s: S, v: S::V, n: usize, to: *mut f32, stride: usize) {
    // SAFETY: as above; no vector is longer than 16.
    unsafe {
        if stride == 1 {
            s.store_part(to, v, n);
        } else {
            let mut lanes = [0.0; 16];
            s.store(lanes.as_mut_ptr(), v);
            for (l, x) in lanes.iter().enumerate().take(n) {
                to.add(l * stride).write(*x);
            }
        }
    }
}
