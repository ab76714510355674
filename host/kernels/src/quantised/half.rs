//! Half precision, but with the exponent of infinity for more numbers: the
//! finite ones of the standard are the same.

/// The difference of the exponents' offsets, 127 - 15.
const RAISE: f32 = f32::from_bits((127 + 112) << 23);
const LOWER: f32 = f32::from_bits((127 - 112) << 23);

#[inline(always)]
pub(super) fn to_f32(half: u16) -> f32 {
    let sign = (u32::from(half) & 0x8000) << 16;
    let magnitude = f32::from_bits((u32::from(half) & 0x7fff) << 13) * RAISE;
    f32::from_bits(magnitude.to_bits() | sign)
}

/// None where half precision does not hold it exactly.
pub(super) fn from_f32(x: f32) -> Option<u16> {
    let magnitude = (x.abs() * LOWER).to_bits() >> 13;
    let half = magnitude as u16 & 0x7fff | (x.to_bits() >> 16) as u16 & 0x8000;
    (to_f32(half).to_bits() == x.to_bits()).then_some(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_standard() {
        for (half, x) in [
            (0x0000, 0.0_f32),
            (0x8000, -0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7bff, 65_504.0),
            (0x0400, 6.103_515_6e-5),
            (0x0001, 5.960_464_5e-8),
            (0x83ff, -6.097_555e-5),
        ] {
            assert_eq!(to_f32(half).to_bits(), x.to_bits());
            assert_eq!(from_f32(x), Some(half));
        }
    }

    #[test]
    fn every_half_comes_back_and_nothing_between() {
        for half in 0..=u16::MAX {
            let x = to_f32(half);
            assert_eq!(from_f32(x), Some(half));
            assert_eq!(from_f32(f32::from_bits(x.to_bits() + 1)), None);
        }
        for x in [
            1e-8,
            0.1,
            131_072.0,
            f32::INFINITY,
            f32::NAN,
            f32::MIN_POSITIVE,
        ] {
            assert_eq!(from_f32(x), None, "{x}");
        }
    }
}
