//! Passes over a whole logits row, in which negative infinity is a banned
//! token.
//!
//! A component pays for a check at every turn of a loop; these turn once for
//! 64 values.

use std::ops::Add;

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

/// How many tokens are not banned.
pub fn count(row: &[f32]) -> usize {
    let (blocks, rest) = row.as_chunks::<64>();
    let mut counts = [0_u32; 16];
    for block in blocks {
        for part in block.as_chunks::<16>().0 {
            for (count, &value) in counts.iter_mut().zip(part) {
                *count += u32::from(value > f32::NEG_INFINITY);
            }
        }
    }
    let of_rest = rest.iter().filter(|&&value| value > f32::NEG_INFINITY);
    counts.iter().sum::<u32>() as usize + of_rest.count()
}

/// e to the power of `x`, which is at most 0, to within 2⁻²² of the result;
/// about 10⁻³⁸ for all below −87. Vectorises.
#[inline]
pub fn exp(x: f32) -> f32 {
    /// Added to a small number, it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first has few bits, so that products are exact.
    const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    let x = if x > -87.0 { x } else { -87.0 };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = (x - power * LN_2.0) - power * LN_2.1;
    // Taylor's series as far as 2⁻²⁴ needs for |rest| ≤ ln 2 / 2.
    let mut sum = 1.0 / 5040.0;
    for coefficient in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = sum * rest + coefficient;
    }
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    sum * scale
}

/// What [`exp_sums`] adds up, each in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpSums {
    /// Σ e^x
    pub mass: f64,
    /// Σ x·e^x
    pub weighted: f64,
}

impl ExpSums {
    /// Entropy in nats of the distribution proportional to e^x:
    /// H = ln Σ e^x − Σ x·e^x ÷ Σ e^x, where 0·ln 0 is 0.
    pub fn entropy(self) -> f64 {
        self.mass.ln() - self.weighted / self.mass
    }
}

/// Sums over x = `level(value)`, which vectorises and is at most 0: usually
/// the distance to the largest value. Levels below −87 count as −87: nothing.
/// 16 values at a time are added in pairs before they are added up in f64.
pub fn exp_sums(row: &[f32], level: impl Fn(f32) -> f32) -> ExpSums {
    let level = |value| {
        let x = level(value);
        if x > -87.0 { x } else { -87.0 }
    };
    let (blocks, rest) = row.as_chunks::<64>();
    let mut masses = [0_f64; 4];
    let mut weighted = [0_f64; 4];
    for block in blocks {
        let levels = block.map(level);
        let powers = levels.map(exp);
        let products: [f32; 64] = std::array::from_fn(|i| levels[i] * powers[i]);
        let (powers, products) = (in_pairs(&powers), in_pairs(&products));
        for lane in 0..4 {
            masses[lane] += f64::from(powers[lane]);
            weighted[lane] += f64::from(products[lane]);
        }
    }
    for &value in rest {
        let x = level(value);
        masses[0] += f64::from(exp(x));
        weighted[0] += f64::from(x * exp(x));
    }
    ExpSums {
        mass: masses.iter().sum(),
        weighted: weighted.iter().sum(),
    }
}

/// Four sums of 16 values each.
#[inline]
fn in_pairs<T: Copy + Add<Output = T>>(values: &[T; 64]) -> [T; 4] {
    let sum_32: [T; 32] = std::array::from_fn(|i| values[i] + values[i + 32]);
    let sum_16: [T; 16] = std::array::from_fn(|i| sum_32[i] + sum_32[i + 16]);
    let sum_8: [T; 8] = std::array::from_fn(|i| sum_16[i] + sum_16[i + 8]);
    std::array::from_fn(|i| sum_8[i] + sum_8[i + 4])
}

/// What [`power_sums`] adds up, each in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerSums {
    /// Σ x
    pub sum: f64,
    /// Σ x²
    pub squares: f64,
}

impl PowerSums {
    /// Standard deviation of a population of `count`.
    pub fn deviation(self, count: usize) -> f64 {
        let mean = self.sum / count as f64;
        (self.squares / count as f64 - mean * mean).max(0.0).sqrt()
    }
}

/// Sums over x = `level(value)`; tokens whose level is negative infinity or
/// NaN are left out. Let levels be distances to a value of the row: squares of
/// large numbers cancel badly.
pub fn power_sums(row: &[f32], level: impl Fn(f32) -> f64) -> PowerSums {
    let level = |value| {
        let x = level(value);
        if x > f64::NEG_INFINITY { x } else { 0.0 }
    };
    let (blocks, rest) = row.as_chunks::<64>();
    let mut sum = [0_f64; 4];
    let mut squares = [0_f64; 4];
    for block in blocks {
        let levels = block.map(level);
        let powers = levels.map(|x| x * x);
        let (levels, powers) = (in_pairs(&levels), in_pairs(&powers));
        for lane in 0..4 {
            sum[lane] += levels[lane];
            squares[lane] += powers[lane];
        }
    }
    for &value in rest {
        let x = level(value);
        sum[0] += x;
        squares[0] += x * x;
    }
    PowerSums {
        sum: sum.iter().sum(),
        squares: squares.iter().sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::{ban_below, count, exp, exp_sums, max, multiply, power_sums};

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

    #[test]
    fn count_leaves_banned_tokens_out() {
        assert_eq!(count(&[]), 0);
        let mut row = counted(130);
        assert_eq!(count(&row), 130);
        for banned in [0, 63, 64, 129] {
            row[banned] = f32::NEG_INFINITY;
        }
        assert_eq!(count(&row), 126);
    }

    #[test]
    fn exp_is_exact_to_single_precision() {
        assert_eq!(exp(0.0), 1.0);
        for i in 0..43_500_u16 {
            let x = -f32::from(i) / 500.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.4e-7, "{x}: {error:e}");
        }
        for x in [-88.0, -1e30, f32::NEG_INFINITY] {
            assert!(exp(x) < 1e-37, "{x}");
        }
    }

    #[test]
    fn entropy_of_known_distributions() {
        // 200 equal tokens, then ½, ¼, ¼ beside banned ones.
        let equal = exp_sums(&[0.0; 200], |l| l);
        assert_eq!((equal.mass, equal.weighted), (200.0, 0.0));
        let mut row = vec![f32::NEG_INFINITY; 100];
        for (at, p) in [(3, 0.5_f32), (64, 0.25), (99, 0.25)] {
            row[at] = p.ln();
        }
        let sums = exp_sums(&row, |l| l);
        assert!((sums.mass - 1.0).abs() < 1e-6);
        assert!((sums.entropy() - 1.5 * std::f64::consts::LN_2).abs() < 1e-6);
    }

    #[test]
    fn deviation_of_the_population_without_banned_tokens() {
        // Public report C034: 10, 9, 1, 0 have mean 5 and deviation √20.5.
        let mut row = vec![f32::NEG_INFINITY; 70];
        for (at, l) in [(0, 10.0), (1, 9.0), (65, 1.0), (69, 0.0)] {
            row[at] = l;
        }
        let sums = power_sums(&row, |l| f64::from(l) - 10.0);
        assert_eq!((sums.sum, sums.squares), (-20.0, 182.0));
        assert!((sums.deviation(4) - 20.5_f64.sqrt()).abs() < 1e-12);
    }
}
