//! No particular instructions: what the compiler makes of four lanes.

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Plain;

/// Added and subtracted, it leaves no bits for a fraction.
const INTEGERS: f32 = 12_582_912.0; // 1.5 * 2^23

macro_rules! lanewise {
    ($a:ident, $b:ident, $e:expr) => {{
        let mut out = [0.0; 4];
        for i in 0..4 {
            let ($a, $b) = ($a[i], $b[i]);
            out[i] = $e;
        }
        out
    }};
}

impl Simd for Plain {
    type V = [f32; 4];
    /// Scale and bias.
    type Affine = [f32; 2];
    const LANES: usize = 4;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Self::V {
        // SAFETY: the caller vouches for four values; an array of f32 is
        // aligned like one.
        unsafe { from.cast::<[f32; 4]>().read() }
    }
    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, n: usize) -> Self::V {
        let mut a = [0.0; 4];
        // SAFETY: the caller vouches for `n` values.
        unsafe { from.copy_to_nonoverlapping(a.as_mut_ptr(), n.min(4)) };
        a
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Self::V) {
        // SAFETY: as in `load`.
        unsafe { to.cast::<[f32; 4]>().write(a) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, a: Self::V, n: usize) {
        // SAFETY: the caller vouches for `n` values.
        unsafe { to.copy_from_nonoverlapping(a.as_ptr(), n.min(4)) }
    }
    #[inline(always)]
    fn affine(self, scale: f32, bias: f32) -> [f32; 2] {
        [scale, bias]
    }
    #[inline(always)]
    unsafe fn load_4_bits(self, from: *const u32, shift: u32, by: [f32; 2]) -> Self::V {
        // SAFETY: the caller vouches for four values; an array of u32 is
        // aligned like one.
        let words = unsafe { from.cast::<[u32; 4]>().read() };
        words.map(|word| by[0] * (word >> shift & 15) as f32 + by[1])
    }
    #[inline(always)]
    unsafe fn load_8_bits(self, from: *const u8) -> Self::V {
        // SAFETY: the caller vouches for four values.
        unsafe { from.cast::<[u8; 4]>().read() }.map(f32::from)
    }
    #[inline(always)]
    fn prefetch(self, _: *const f32) {}

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, a / b)
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        lanewise!(a, b, if a > b { a } else { b })
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        let integers = self.splat(INTEGERS);
        self.sub(self.add(a, integers), integers)
    }
    #[inline(always)]
    fn scale(self, a: Self::V, n: Self::V) -> Self::V {
        // The sum's low bits are n; the shift takes them to the exponent.
        lanewise!(a, n, {
            let power = ((n + INTEGERS).to_bits() << 23).wrapping_add(127 << 23);
            a * f32::from_bits(power)
        })
    }

    #[inline(always)]
    fn sum(self, a: Self::V) -> f32 {
        (a[0] + a[1]) + (a[2] + a[3])
    }
    #[inline(always)]
    fn sum4(self, a: [Self::V; 4]) -> [f32; 4] {
        [
            self.sum(a[0]),
            self.sum(a[1]),
            self.sum(a[2]),
            self.sum(a[3]),
        ]
    }
    #[inline(always)]
    fn largest(self, a: Self::V) -> f32 {
        a[0].max(a[1]).max(a[2].max(a[3]))
    }

    #[inline(always)]
    fn at_least(self, a: Self::V, b: Self::V) -> u32 {
        let mut bits = 0;
        for i in 0..4 {
            bits |= u32::from(a[i] >= b[i]) << i;
        }
        bits
    }
    #[inline(always)]
    fn keep_at_least(self, a: Self::V, x: Self::V, floor: Self::V) -> Self::V {
        self.blend(self.at_least(x, floor), a, [0.0; 4])
    }
    #[inline(always)]
    fn blend(self, bits: u32, yes: Self::V, no: Self::V) -> Self::V {
        let mut out = no;
        for i in 0..4 {
            if bits >> i & 1 == 1 {
                out[i] = yes[i];
            }
        }
        out
    }
}
