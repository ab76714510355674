//! Numbers for tests.

/// Numbers from -1 to 1 that look random and are the same every time
/// (SplitMix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn one(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    pub(crate) fn some(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.one()).collect()
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }
}

/// The bits of each value, so that equal means equal.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The largest of each block of rows of `width` finite values: as it is defined.
pub(crate) fn largest_of_blocks(width: usize, rows: &[f32]) -> Vec<f32> {
    let rows = rows.chunks(width.max(1));
    rows.flat_map(|row| row.chunks(32))
        .map(|block| block.iter().copied().fold(f32::NEG_INFINITY, f32::max))
        .collect()
}
