//! The only source of chance.

#[cfg(target_arch = "wasm32")]
pub use crate::bindings::host::sluice::sampling::random::bits;
#[cfg(not(target_arch = "wasm32"))]
pub use crate::testing::imports::random::bits;

/// A number in [0, 1) that depends on nothing but the request's seed, the
/// choice, the position, the stage and `draw`.
pub fn uniform(draw: u32) -> f64 {
    unit(bits(draw))
}

/// The upper 53 bits as a multiple of 2⁻⁵³.
fn unit(bits: u64) -> f64 {
    const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
    (bits >> 11) as f64 * STEP
}

#[cfg(test)]
mod tests {
    use super::unit;

    #[test]
    fn covers_zero_up_to_but_not_one() {
        assert_eq!(unit(0), 0.0);
        assert_eq!(unit(0x7ff), 0.0);
        assert_eq!(unit(1 << 63), 0.5);
        assert_eq!(unit(u64::MAX), 1.0 - f64::EPSILON / 2.0);
    }
}
