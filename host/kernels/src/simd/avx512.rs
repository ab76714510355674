//! AVX-512: sixteen lanes.

use std::arch::x86_64::*;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The machine has AVX-512F.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

#[inline(always)]
fn first(n: usize) -> __mmask16 {
    if n < 16 { (1 << n) - 1 } else { !0 }
}

// SAFETY, for every block below: a value of `Avx512` exists only where the
// instructions do; the pointers are as the trait asks of its callers.
impl Simd for Avx512 {
    type V = __m512;
    /// The sixteen results.
    type Affine = __m512;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(first(n), from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: __m512) {
        unsafe { _mm512_storeu_ps(to, a) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, a: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(to, first(n), a) }
    }
    #[inline(always)]
    fn affine(self, scale: f32, bias: f32) -> __m512 {
        unsafe {
            let q = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0,
                15.0,
            );
            _mm512_fmadd_ps(_mm512_set1_ps(scale), q, _mm512_set1_ps(bias))
        }
    }
    #[inline(always)]
    unsafe fn load_4_bits(self, from: *const u32, shift: u32, by: __m512) -> __m512 {
        unsafe {
            let words = _mm512_loadu_si512(from.cast());
            let words = _mm512_srlv_epi32(words, _mm512_set1_epi32(shift.cast_signed()));
            _mm512_permutexvar_ps(words, by) // sees the low four bits only
        }
    }
    #[inline(always)]
    unsafe fn load_8_bits(self, from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    fn prefetch(self, at: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<0>(a) }
    }
    #[inline(always)]
    fn scale(self, a: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(a, n) }
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // The order of `sum4`: within each quarter first, then the quarters.
        unsafe {
            let a = _mm512_add_ps(a, _mm512_permute_ps::<0b01_00_11_10>(a));
            let a = _mm512_add_ps(a, _mm512_permute_ps::<0b10_11_00_01>(a));
            _mm_cvtss_f32(quarters(a))
        }
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        unsafe {
            // In each quarter: a0+a2 b0+b2 a1+a3 b1+b3, then the four sums.
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let even = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let odd = _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd);
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), quarters(_mm512_add_ps(even, odd)));
            out
        }
    }
    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }

    #[inline(always)]
    fn at_least(self, a: __m512, b: __m512) -> u32 {
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b)) }
    }
    #[inline(always)]
    fn keep_at_least(self, a: __m512, x: __m512, floor: __m512) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, floor), a) }
    }
    #[inline(always)]
    fn blend(self, bits: u32, yes: __m512, no: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(bits as __mmask16, no, yes) }
    }
}

/// The sum of the four quarters.
///
/// # Safety
/// The machine has AVX-512F.
#[inline(always)]
unsafe fn quarters(a: __m512) -> __m128 {
    // SAFETY: as above.
    unsafe {
        let a = _mm512_add_ps(a, _mm512_shuffle_f32x4::<0b01_00_11_10>(a, a));
        let a = _mm512_add_ps(a, _mm512_shuffle_f32x4::<0b10_11_00_01>(a, a));
        _mm512_castps512_ps128(a)
    }
}
