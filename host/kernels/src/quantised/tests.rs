#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::{
    matmul::matmul_nt_on,
    testing::{Numbers, bits, largest_of_blocks},
};

/// Rows as MLX stores them, and each weight by the definition.
struct Weights {
    shape: [usize; 2],
    format: Format,
    words: Vec<u32>,
    scales: Vec<f32>,
    biases: Vec<f32>,
    dense: Vec<f32>,
}

/// Random ones whose scales keep `precision` bits of an f32's 24.
fn weights(shape: [usize; 2], format: Format, precision: u32, numbers: &mut Numbers) -> Weights {
    let [n, k] = shape;
    let Format { group_size, n_bits } = format;
    let words: Vec<u32> = (0..n * k * n_bits / 32)
        .map(|_| numbers.bits() as u32)
        .collect();
    let cut = |x: f32| f32::from_bits(x.to_bits() >> (24 - precision) << (24 - precision));
    let mut some = |n: usize| -> Vec<f32> { numbers.some(n).into_iter().map(cut).collect() };
    let (scales, biases) = (some(n * k / group_size), some(n * k / group_size));
    let weight = |at: usize| {
        let bit = at * n_bits;
        let q = words[bit / 32] >> (bit % 32) & ((1 << n_bits) - 1);
        scales[at / group_size] * q as f32 + biases[at / group_size]
    };
    Weights {
        shape,
        format,
        dense: (0..n * k).map(weight).collect(),
        words,
        scales,
        biases,
    }
}

impl Weights {
    fn quantised(&self) -> Option<Quantised> {
        let Self { words, scales, .. } = self;
        Quantised::new(self.shape, self.format, words, scales, &self.biases)
    }
}

const fn format(group_size: usize, n_bits: usize) -> Format {
    Format { group_size, n_bits }
}

const FORMATS: [Format; 6] = [
    format(32, 4),
    format(64, 4),
    format(128, 4),
    format(32, 8),
    format(64, 8),
    format(128, 8),
];

/// The product with the weights in f32, and with the weights as they are.
fn check(m: usize, n: usize, n_groups: usize, format: Format, precision: u32, pool: &Pool) {
    let k = n_groups * format.group_size;
    let mut numbers = Numbers((m * 1_000_000 + n * 1_000 + k) as u64);
    let weights = weights([n, k], format, precision, &mut numbers);
    let quantised = weights.quantised().unwrap();
    let a = numbers.some(m * k);
    for level in Level::all() {
        let mut expected = vec![f32::NAN; m * n];
        matmul_nt_on(
            level,
            pool,
            [m, n, k],
            &a,
            &weights.dense,
            &mut expected,
            None,
        );
        let mut c = vec![f32::NAN; m * n];
        let mut maxima = vec![7.0; m * n.div_ceil(crate::row::BLOCK)];
        quantised.matmul_nt_on(level, pool, m, &a, &mut c, Some(&mut maxima));
        assert_eq!(maxima, largest_of_blocks(n, &expected));
        assert!(
            bits(&c) == bits(&expected),
            "{level:?} {m} {n} {k} {format:?}"
        );
    }
}

#[test]
fn products_have_the_bits_of_f32_weights() {
    let pools = [Pool::new(0), Pool::new(1), Pool::new(3)];
    for format in FORMATS {
        for pool in &pools {
            for m in 0..=64 {
                check(m, 13, 128 / format.group_size, format, 11, pool);
            }
            for n in 0..=10 {
                check(3, n, 3, format, 8, pool);
                check(9, n, 3, format, 8, pool);
            }
        }
        for m in [1, 4, 8, 130] {
            check(m, 300, 9, format, 11, &pools[1]);
            check(m, 6, 0, format, 11, &pools[1]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_shape(
        m in 1_usize..=64,
        n in 1_usize..90,
        n_groups in 1_usize..20,
        format in 0_usize..6,
        precision in 1_u32..=16,
        n_helpers in 0_usize..3,
    ) {
        check(m, n, n_groups, FORMATS[format], precision, &Pool::new(n_helpers));
    }
}

#[test]
fn rows_are_the_weights() {
    let mut numbers = Numbers(5);
    for format in FORMATS {
        for precision in [11, 16] {
            let k = 11 * format.group_size;
            let weights = weights([7, k], format, precision, &mut numbers);
            let quantised = weights.quantised().unwrap();
            let ids = [6, 0, 3, 3, 1, 5];
            let expected: Vec<f32> = ids
                .iter()
                .flat_map(|&id| weights.dense[id as usize * k..][..k].to_vec())
                .collect();
            for level in Level::all() {
                let mut out = vec![f32::NAN; ids.len() * k];
                quantised.rows_on(level, &ids, &mut out);
                assert_eq!(bits(&out), bits(&expected), "{level:?} {format:?}");
            }
        }
    }
}

/// A row of 32 columns, worked by hand: q is 0, 1, …, 15, 0, 1, …, 15.
#[test]
fn a_row_by_hand() {
    let words = [0x7654_3210, 0xfedc_ba98, 0x7654_3210, 0xfedc_ba98];
    let quantised = Quantised::new([1, 32], FORMATS[0], &words, &[0.5], &[-4.0]).unwrap();
    let mut row = [0.0; 32];
    quantised.rows(&[0], &mut row);
    assert_eq!(row[..4], [-4.0, -3.5, -3.0, -2.5]);
    assert_eq!(row[14..18], [3.0, 3.5, -4.0, -3.5]);
    // The sum of the row is 240 · 0.5 - 32 · 4 = -8.
    let mut c = [0.0; 2];
    quantised.matmul_nt(2, &[[1.0; 32], [2.0; 32]].concat(), &mut c);
    assert_eq!(c, [-8.0, -16.0]);
}

#[test]
fn memory_is_that_of_the_file() {
    let mut numbers = Numbers(6);
    let weights = weights([512, 576], FORMATS[0], 11, &mut numbers);
    let n_bytes = weights.quantised().unwrap().n_bytes();
    // 4 bits and twice 16 for each 32 weights: 5 bits a weight.
    let stored = 512 * 576 * 5 / 8;
    assert!((stored..stored + 256).contains(&n_bytes), "{n_bytes}");
}

#[test]
fn what_would_round_twice_is_left_to_f32() {
    let new = |format: Format, scale: f32, bias: f32| {
        let k = 384;
        let n_groups = k / format.group_size;
        let words = vec![0; k * format.n_bits / 32];
        let (scales, biases) = (vec![scale; n_groups], vec![bias; n_groups]);
        Quantised::new([1, k], format, &words, &scales, &biases)
    };
    let [four, .., eight] = FORMATS;
    assert!(new(four, 0.5, 0.1).is_some());
    assert!(new(eight, -0.0, 0.1).is_some());
    // 20 bits times 4 bits are 24; times 8 bits they are too many.
    let precise = 1.0 + 1.0 / (1 << 19) as f32;
    assert!(new(four, precise, 0.0).is_some());
    assert!(new(eight, precise, 0.0).is_none());
    assert!(new(four, 0.1, 0.0).is_none());
    for bad in [f32::NAN, f32::INFINITY] {
        assert!(new(four, bad, 0.0).is_none());
        assert!(new(four, 1.0, bad).is_none());
    }
    assert!(new(format(16, 4), 1.0, 0.0).is_none());
    assert!(new(format(32, 3), 1.0, 0.0).is_none());
    let (words, scales) = ([0; 12], [1.0; 1]);
    assert!(Quantised::new([1, 96], format(64, 4), &words, &scales, &scales).is_none());
}

#[test]
#[should_panic(expected = "row 1 of 1")]
fn rows_are_checked() {
    let quantised = Quantised::new([1, 32], FORMATS[0], &[0; 4], &[1.0], &[0.0]).unwrap();
    quantised.rows(&[1], &mut [0.0; 32]);
}

#[test]
#[should_panic(expected = "A is not 1 x 32")]
fn lengths_are_checked() {
    let quantised = Quantised::new([1, 32], FORMATS[0], &[0; 4], &[1.0], &[0.0]).unwrap();
    quantised.matmul_nt(1, &[0.0; 31], &mut [0.0]);
}
