//! Numbers for made contexts and rows: the same for the same seed.

use crate::engine::TokenId;

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// `stream` tells apart what is made of the same seed.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// Below `n`, which is above zero.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Logits that are spread much as a model's: a bell of deviation 3, and a
    /// few dozen tokens that stand out.
    pub(super) fn row(&mut self, width: usize) -> Vec<f32> {
        let mut logit = || (0..4).map(|_| self.uniform()).sum::<f64>() - 2.0;
        let mut row: Vec<_> = (0..width).map(|_| (logit() * 5.2) as f32).collect();
        for place in 0..40_u8 {
            row[self.below(width)] += 14.0 - f32::from(place) / 4.0;
        }
        row
    }

    /// Ids below `n`.
    pub(super) fn tokens(&mut self, length: usize, n: u32) -> Vec<TokenId> {
        (0..length)
            .map(|_| self.below(n as usize) as TokenId)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    /// The first outputs of the published generator for the seed 1234567.
    #[test]
    fn the_generator_is_splitmix64() {
        let mut random = Random::new(1_234_567, 0);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }
}
