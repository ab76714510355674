//! NEON: four lanes.

use std::arch::aarch64::*;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// # Safety
    /// The machine has NEON.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

// SAFETY, for every block below: a value of `Neon` exists only where the
// instructions do; the pointers are as the trait asks of its callers.
impl Simd for Neon {
    type V = float32x4_t;
    /// Scale and bias.
    type Affine = [float32x4_t; 2];
    const LANES: usize = 4;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, n: usize) -> float32x4_t {
        let mut part = [0.0; 4];
        unsafe {
            from.copy_to_nonoverlapping(part.as_mut_ptr(), n.min(4));
            vld1q_f32(part.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: float32x4_t) {
        unsafe { vst1q_f32(to, a) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, a: float32x4_t, n: usize) {
        let mut part = [0.0; 4];
        unsafe {
            vst1q_f32(part.as_mut_ptr(), a);
            to.copy_from_nonoverlapping(part.as_ptr(), n.min(4));
        }
    }
    #[inline(always)]
    fn affine(self, scale: f32, bias: f32) -> [float32x4_t; 2] {
        [self.splat(scale), self.splat(bias)]
    }
    #[inline(always)]
    unsafe fn load_4_bits(self, from: *const u32, shift: u32, by: [float32x4_t; 2]) -> float32x4_t {
        unsafe {
            let words = vshlq_u32(vld1q_u32(from), vdupq_n_s32(-shift.cast_signed()));
            let q = vandq_u32(words, vdupq_n_u32(15));
            vfmaq_f32(by[1], by[0], vcvtq_f32_u32(q))
        }
    }
    #[inline(always)]
    unsafe fn load_8_bits(self, from: *const u8) -> float32x4_t {
        unsafe {
            let bytes = vcreate_u8(u64::from(from.cast::<u32>().read_unaligned()));
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
        }
    }
    #[inline(always)]
    fn prefetch(self, _: *const f32) {}

    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vminq_f32(a, b) }
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmaxq_f32(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    fn scale(self, a: float32x4_t, n: float32x4_t) -> float32x4_t {
        unsafe {
            let exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        }
    }

    #[inline(always)]
    fn sum(self, a: float32x4_t) -> f32 {
        unsafe {
            let pairs = vpaddq_f32(a, a);
            vgetq_lane_f32::<0>(vpaddq_f32(pairs, pairs))
        }
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [float32x4_t; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        unsafe {
            vst1q_f32(
                out.as_mut_ptr(),
                vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)),
            )
        };
        out
    }
    #[inline(always)]
    fn largest(self, a: float32x4_t) -> f32 {
        unsafe { vmaxvq_f32(a) }
    }

    #[inline(always)]
    fn at_least(self, a: float32x4_t, b: float32x4_t) -> u32 {
        unsafe { vaddvq_u32(vandq_u32(vcgeq_f32(a, b), lanes())) }
    }
    #[inline(always)]
    fn keep_at_least(self, a: float32x4_t, x: float32x4_t, floor: float32x4_t) -> float32x4_t {
        unsafe {
            let kept = vandq_u32(vcgeq_f32(x, floor), vreinterpretq_u32_f32(a));
            vreinterpretq_f32_u32(kept)
        }
    }
    #[inline(always)]
    fn blend(self, bits: u32, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vtstq_u32(vdupq_n_u32(bits), lanes()), yes, no) }
    }
}

/// The bit of each lane.
#[inline(always)]
fn lanes() -> uint32x4_t {
    // SAFETY: called by methods of `Neon` only.
    unsafe { vld1q_u32([1, 2, 4, 8].as_ptr()) }
}
