//! The exponential function, for which there is no instruction.

use super::Simd;

/// Logarithm of the smallest normal f32; below it `exp` gives 0.
const LOWEST: f32 = -87.336_54;
/// Above this, `exp` stays at about 2.4e38, the last value whose power of two
/// is representable.
const HIGHEST: f32 = 88.376_26;

/// ln 2 in two parts; a small integer times the first is exact.
const LN_2_HIGH: f32 = 0.693_359_4; // 355 / 512
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `e^x` with a relative error below 2e-7 from [`LOWEST`] to [`HIGHEST`].
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, so e^x = 2^n e^r.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let bounded = s.max(s.splat(LOWEST), s.min(s.splat(HIGHEST), x));
    let n = s.round(s.mul(bounded, s.splat(std::f32::consts::LOG2_E)));
    let r = s.mul_add(n, s.splat(-LN_2_HIGH), bounded);
    let r = s.mul_add(n, s.splat(-LN_2_LOW), r);
    s.keep_at_least(s.scale(exp_near_zero(s, r), n), x, s.splat(LOWEST))
}

/// `e^(x / t)` for x <= 0 and one t.
///
/// Multiplied with 1 / t and rounded, x / t would be off by up to 5e-7 at -10,
/// where most of a vocabulary's mass can lie. Here the product stays exact
/// until n ln 2 is taken from it.
#[derive(Clone, Copy)]
pub(crate) struct ExpOver<V> {
    lowest: V,
    /// log₂ e / t
    log2: V,
    /// 1 / t in two parts.
    high: V,
    low: V,
}

impl<V: Copy> ExpOver<V> {
    /// `t` is from 1e-30 to 1e30.
    #[inline(always)]
    pub(crate) fn new<S: Simd<V = V>>(s: S, t: f32) -> Self {
        let inverse = 1.0 / f64::from(t);
        let high = inverse as f32;
        Self {
            lowest: s.splat(LOWEST * t),
            log2: s.splat((inverse * std::f64::consts::LOG2_E) as f32),
            high: s.splat(high),
            low: s.splat((inverse - f64::from(high)) as f32),
        }
    }

    /// 1e-38 where the result would be less: nothing beside e^0.
    #[inline(always)]
    pub(crate) fn exp<S: Simd<V = V>>(self, s: S, x: V) -> V {
        let bounded = s.max(self.lowest, x);
        let n = s.round(s.mul(bounded, self.log2));
        let r = s.mul_add(bounded, self.high, s.mul(n, s.splat(-LN_2_HIGH)));
        let r = s.mul_add(n, s.splat(-LN_2_LOW), s.mul_add(bounded, self.low, r));
        s.scale(exp_near_zero(s, r), n)
    }
}

/// `e^r` for |r| up to ln 2 / 2: the polynomial of the Cephes library's `expf`.
#[inline(always)]
fn exp_near_zero<S: Simd>(s: S, r: S::V) -> S::V {
    let mut p = s.splat(1.987_569_1e-4);
    p = s.mul_add(p, r, s.splat(1.398_199_9e-3));
    p = s.mul_add(p, r, s.splat(8.333_452e-3));
    p = s.mul_add(p, r, s.splat(4.166_579_6e-2));
    p = s.mul_add(p, r, s.splat(0.166_666_66));
    p = s.mul_add(p, r, s.splat(0.500_000_06));
    p = s.mul_add(p, r, s.splat(1.0));
    s.mul_add(p, r, s.splat(1.0))
}
