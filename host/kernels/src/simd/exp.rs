//! The exponential function, for which there is no instruction.

use super::Simd;

/// Logarithm of the smallest normal f32; below it `exp` gives 0.
const LOWEST: f32 = -87.336_54;
/// Above this, `exp` stays at about 2.4e38, the last value whose power of two
/// is representable.
const HIGHEST: f32 = 88.376_26;

/// `e^x` with a relative error below 2e-7 from [`LOWEST`] to [`HIGHEST`].
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, so e^x = 2^n e^r; ln 2 is split in two
/// so that r keeps its low bits. The polynomial for e^r is that of the Cephes
/// library's `expf`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let bounded = s.max(s.splat(LOWEST), s.min(s.splat(HIGHEST), x));
    let n = s.round(s.mul(bounded, s.splat(std::f32::consts::LOG2_E)));
    let r = s.mul_add(n, s.splat(-0.693_359_4), bounded);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    p = s.mul_add(p, r, s.splat(1.398_199_9e-3));
    p = s.mul_add(p, r, s.splat(8.333_452e-3));
    p = s.mul_add(p, r, s.splat(4.166_579_6e-2));
    p = s.mul_add(p, r, s.splat(0.166_666_66));
    p = s.mul_add(p, r, s.splat(0.500_000_06));
    let p = s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0));
    s.keep_at_least(s.scale(p, n), x, s.splat(LOWEST))
}
