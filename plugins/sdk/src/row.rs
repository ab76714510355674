//! Passes over a whole logits row, in which negative infinity is a banned
//! token.
//!
//! A component pays for a check at every turn of a loop; these turn once for
//! 64 values.

/// The largest value; negative infinity for an empty row.
pub fn max(row: &[f32]) -> f32 {
    let (blocks, rest) = row.as_chunks::<64>();
    let mut best = [f32::NEG_INFINITY; 16];
    for block in blocks {
        for part in block.as_chunks::<16>().0 {
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

/// Multiplies every value by `factor`, which is above zero.
pub fn multiply(row: &mut [f32], factor: f32) {
    each(row, |value| value * factor);
}

/// Bans every token whose logit is below `cut`.
pub fn ban_below(row: &mut [f32], cut: f32) {
    each(row, |value| {
        if value < cut {
            f32::NEG_INFINITY
        } else {
            value
        }
    });
}

/// Changes every value by a function that vectorises: arithmetic and choices,
/// no calls.
#[inline]
pub fn each(row: &mut [f32], change: impl Fn(f32) -> f32) {
    let (blocks, rest) = row.as_chunks_mut::<64>();
    for block in blocks {
        *block = block.map(&change);
    }
    for value in rest {
        *value = change(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::{ban_below, max, multiply};

    /// 1, 2, … as far as a row reaches past two blocks.
    fn counted(n: u16) -> Vec<f32> {
        (1..=n).map(f32::from).collect()
    }

    #[test]
    fn max_looks_at_blocks_and_rest() {
        assert_eq!(max(&[]), f32::NEG_INFINITY);
        assert_eq!(max(&[f32::NEG_INFINITY, -3.0]), -3.0);
        for n in [1, 64, 65, 128, 200] {
            let mut row = counted(n);
            assert_eq!(max(&row), f32::from(n));
            row.reverse();
            assert_eq!(max(&row), f32::from(n));
        }
    }

    #[test]
    fn multiply_changes_every_value_and_keeps_bans() {
        let mut row = counted(130);
        row[70] = f32::NEG_INFINITY;
        multiply(&mut row, 0.5);
        assert_eq!(
            (row[0], row[63], row[64], row[129]),
            (0.5, 32.0, 32.5, 65.0)
        );
        assert_eq!(row[70], f32::NEG_INFINITY);
    }

    #[test]
    fn ban_below_keeps_the_cut_itself() {
        let mut row = counted(66);
        ban_below(&mut row, 65.0);
        assert_eq!(row[63], f32::NEG_INFINITY);
        assert_eq!(row[64..], [65.0, 66.0]);
    }
}
