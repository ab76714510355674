//! Vectors of f32, one implementation for each instruction set, and the choice
//! among them at run time.
//!
//! A kernel is written once, over [`Simd`]. [`Level::run`] compiles it for each
//! instruction set: everything from [`Kernel::run`] down is inlined into one
//! function that has the instructions enabled.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exp;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;

pub(crate) use exp::{ExpOver, exp};

/// The instructions of one level. A value of an implementing type proves that
/// this machine has them, which is what makes its methods safe.
///
/// Bits are numbered from the lowest lane. NaN compares as false and may be
/// dropped by `min` and `max`.
pub(crate) trait Simd: Copy + Send + Sync {
    type V: Copy;
    /// What [`Self::load_4_bits`] needs of a scale and a bias.
    type Affine: Copy;
    const LANES: usize;
    /// How many vector registers there are, for the size of a tile.
    const REGISTERS: usize;

    fn splat(self, x: f32) -> Self::V;
    /// # Safety
    /// `from` is valid for reads of `LANES` values.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// The first `n <= LANES` lanes, the others 0.
    /// # Safety
    /// `from` is valid for reads of `n` values.
    unsafe fn load_part(self, from: *const f32, n: usize) -> Self::V;
    /// # Safety
    /// `to` is valid for writes of `LANES` values.
    unsafe fn store(self, to: *mut f32, a: Self::V);
    /// The first `n <= LANES` lanes.
    /// # Safety
    /// `to` is valid for writes of `n` values.
    unsafe fn store_part(self, to: *mut f32, a: Self::V, n: usize);
    /// `scale * q + bias`, of which the product must be exact, is what
    /// [`Self::load_4_bits`] makes of q.
    fn affine(self, scale: f32, bias: f32) -> Self::Affine;
    /// What `by` makes of bits `shift` to `shift + 3` of `LANES` words.
    /// # Safety
    /// `from` is valid for reads of `LANES` values, and `shift` is below 29.
    unsafe fn load_4_bits(self, from: *const u32, shift: u32, by: Self::Affine) -> Self::V;
    /// `LANES` bytes as numbers from 0 to 255.
    /// # Safety
    /// `from` is valid for reads of `LANES` values.
    unsafe fn load_8_bits(self, from: *const u8) -> Self::V;
    /// Brings a line nearer, where the instruction exists. Any address will do.
    fn prefetch(self, at: *const f32);

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the machine can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// To the nearest integer, ties to even, for magnitudes below 2²².
    fn round(self, a: Self::V) -> Self::V;
    /// `a * 2^n` for integers `n` from -126 to 127.
    fn scale(self, a: Self::V, n: Self::V) -> Self::V;

    /// The sum of the lanes, in an order of its own.
    fn sum(self, a: Self::V) -> f32;
    /// Four sums, each bit-equal to [`Self::sum`].
    fn sum4(self, a: [Self::V; 4]) -> [f32; 4];
    fn largest(self, a: Self::V) -> f32;

    /// A bit for each lane with `a >= b`.
    fn at_least(self, a: Self::V, b: Self::V) -> u32;
    /// `a` in the lanes where `x >= floor`, 0 elsewhere.
    fn keep_at_least(self, a: Self::V, x: Self::V, floor: Self::V) -> Self::V;
    /// `yes` in the lanes whose bit is set, `no` elsewhere.
    fn blend(self, bits: u32, yes: Self::V, no: Self::V) -> Self::V;
}

/// A computation that can run at any level.
pub(crate) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`, like all it calls with `s`, and must not
    /// use `s` inside a closure: only inlined code has the instructions.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// An instruction set this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Plain,
}

impl Level {
    /// The fastest level.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Self(Set::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self(Set::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            return Self(Set::Neon);
        }
        Self(Set::Plain)
    }

    /// Every level of this machine.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let mut levels = vec![Self(Set::Plain)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            levels.push(Self(Set::Avx2));
        }
        if !levels.contains(&Self::best()) {
            levels.push(Self::best());
        }
        levels
    }

    /// Runs `kernel` with the instructions of this level.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: a `Level` other than plain exists only where `best` or `all`
        // detected its features.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => run_avx512(kernel),
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => run_avx2(kernel),
                #[cfg(target_arch = "aarch64")]
                Set::Neon => run_neon(kernel),
                Set::Plain => kernel.run(plain::Plain),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the feature enabled.
    kernel.run(unsafe { avx512::Avx512::new() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the features enabled.
    kernel.run(unsafe { avx2::Avx2::new() })
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function has the feature enabled.
    kernel.run(unsafe { neon::Neon::new() })
}

#[cfg(test)]
mod tests;
