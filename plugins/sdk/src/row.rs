//! Passes over a whole logits row.
//!
//! A component pays for a check at every turn of a loop; these turn once for
//! 64 values. Banned tokens are negative infinity.

/// The largest value; negative infinity for an empty row.
pub fn max(row: &[f32]) -> f32 {
    let (blocks, rest) = row.as_chunks::<64>();
    let mut best = [f32::NEG_INFINITY; 16];
    for block in blocks {
        let (parts, _) = block.as_chunks::<16>();
        for part in parts {
            for (best, &value) in best.iter_mut().zip(part) {
                *best = if value > *best { value } else { *best };
            }
        }
    }
    best.iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
}
