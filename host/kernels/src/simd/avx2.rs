//! AVX2 with fused multiply-add: eight lanes.

use std::arch::x86_64::*;

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has AVX2 and FMA.
    #[inline(always)]
    pub(super) unsafe fn new() -> Self {
        Self(())
    }
}

// SAFETY, for every block below: a value of `Avx2` exists only where the
// instructions do; the pointers are as the trait asks of its callers.
impl Simd for Avx2 {
    type V = __m256;
    /// Scale and bias.
    type Affine = [__m256; 2];
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_part(self, from: *const f32, n: usize) -> __m256 {
        unsafe { _mm256_maskload_ps(from, first(n)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: __m256) {
        unsafe { _mm256_storeu_ps(to, a) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, a: __m256, n: usize) {
        unsafe { _mm256_maskstore_ps(to, first(n), a) }
    }
    #[inline(always)]
    fn affine(self, scale: f32, bias: f32) -> [__m256; 2] {
        [self.splat(scale), self.splat(bias)]
    }
    #[inline(always)]
    unsafe fn load_4_bits(self, from: *const u32, shift: u32, by: [__m256; 2]) -> __m256 {
        unsafe {
            let words = _mm256_loadu_si256(from.cast());
            let words = _mm256_srlv_epi32(words, _mm256_set1_epi32(shift.cast_signed()));
            let q = _mm256_and_si256(words, _mm256_set1_epi32(15));
            _mm256_fmadd_ps(by[0], _mm256_cvtepi32_ps(q), by[1])
        }
    }
    #[inline(always)]
    unsafe fn load_8_bits(self, from: *const u8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    fn prefetch(self, at: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn scale(self, a: __m256, n: __m256) -> __m256 {
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }

    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        // The order of `sum4`: within each half first, then the halves.
        unsafe {
            let a = _mm256_hadd_ps(a, a);
            let a = _mm256_hadd_ps(a, a);
            _mm_cvtss_f32(halves(a))
        }
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        unsafe {
            let sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), halves(sums));
            out
        }
    }
    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        unsafe {
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
        }
    }

    #[inline(always)]
    fn at_least(self, a: __m256, b: __m256) -> u32 {
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a, b)).cast_unsigned() }
    }
    #[inline(always)]
    fn keep_at_least(self, a: __m256, x: __m256, floor: __m256) -> __m256 {
        unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(x, floor), a) }
    }
    #[inline(always)]
    fn blend(self, bits: u32, yes: __m256, no: __m256) -> __m256 {
        unsafe {
            let lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let bits = _mm256_and_si256(_mm256_set1_epi32(bits.cast_signed()), lane);
            let set = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, lane));
            _mm256_blendv_ps(no, yes, set)
        }
    }
}

/// All ones in the first `n` lanes.
#[inline(always)]
fn first(n: usize) -> __m256i {
    // SAFETY: called by methods of `Avx2` only.
    unsafe {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n.min(8) as i32), lane)
    }
}

/// The sum of the two halves.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn halves(a: __m256) -> __m128 {
    // SAFETY: as above.
    unsafe { _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a)) }
}
