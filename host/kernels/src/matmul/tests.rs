#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::testing::{Numbers, bits, largest_of_blocks};

/// The definition, in f64.
fn naive([m, n, k]: [usize; 3], a: &[f32], b: &[f32]) -> Vec<f64> {
    let dot = |i: usize, j: usize| {
        let pairs = a[i * k..(i + 1) * k].iter().zip(&b[j * k..(j + 1) * k]);
        pairs.map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
    };
    (0..m * n).map(|at| dot(at / n, at % n)).collect()
}

fn product(level: Level, pool: &Pool, sides: [usize; 3], a: &[f32], b: &[f32]) -> Vec<f32> {
    // What was there before must not matter.
    let mut c = vec![f32::NAN; sides[0] * sides[1]];
    matmul_nt_on(level, pool, sides, a, b, &mut c, None);
    // The same with maxima.
    let [m, n, _] = sides;
    let (mut again, mut maxima) = (c.clone(), vec![7.0; m * n.div_ceil(BLOCK)]);
    again.fill(f32::NAN);
    matmul_nt_on(level, pool, sides, a, b, &mut again, Some(&mut maxima));
    assert!(bits(&again) == bits(&c), "{level:?} {sides:?}");
    assert_eq!(maxima, largest_of_blocks(n, &c), "{level:?} {sides:?}");
    c
}

fn check(sides: [usize; 3]) {
    let [m, n, k] = sides;
    let mut numbers = Numbers((m * 1_000_000 + n * 1_000 + k) as u64);
    let (a, b) = (numbers.some(m * k), numbers.some(n * k));
    let expected = naive(sides, &a, &b);
    let pool = Pool::new(0);
    for level in Level::all() {
        let c = product(level, &pool, sides, &a, &b);
        for (at, (&c, &expected)) in c.iter().zip(&expected).enumerate() {
            let error = (f64::from(c) - expected).abs();
            let bound = 1e-6 * (k as f64).sqrt().max(1.0);
            assert!(
                error <= bound,
                "{level:?} {sides:?} at {at}: {c} is not {expected}"
            );
        }
    }
}

/// A block in which a value is no logit has no maximum, and the others have theirs.
#[test]
fn maxima_of_what_is_no_logit_are_unknown() {
    for m in [1, 3, 9, 50] {
        let (n, k) = (300, 33);
        let mut numbers = Numbers(m as u64);
        let (a, mut b) = (numbers.some(m * k), numbers.some(n * k));
        for (row, bad) in [(70, f32::NAN), (299, f32::INFINITY)] {
            b[row * k..(row + 1) * k].fill(bad);
        }
        for pool in [Pool::new(0), Pool::new(2)] {
            for level in Level::all() {
                let mut c = vec![0.0; m * n];
                let mut maxima = vec![7.0; m * n.div_ceil(BLOCK)];
                matmul_nt_on(level, &pool, [m, n, k], &a, &b, &mut c, Some(&mut maxima));
                let rows = c.chunks(n).zip(maxima.chunks(n.div_ceil(BLOCK)));
                for (row, maxima) in rows {
                    for (block, &maximum) in row.chunks(BLOCK).zip(maxima) {
                        let is_bad = block.iter().any(|&x| x.is_nan() || x == f32::INFINITY);
                        assert_eq!(maximum.is_nan(), is_bad, "{level:?} {block:?}");
                    }
                    assert!(maxima[2].is_nan() && !maxima[0].is_nan());
                }
            }
        }
    }
}

#[test]
fn every_length_of_k() {
    for k in (0..=70).chain([576, 1_536]) {
        for m in [1, 2, 5, 49] {
            check([m, 6, k]);
        }
    }
}

#[test]
fn every_small_shape() {
    for m in (1..=17).chain([64, 300]) {
        for n in (1..=17).chain([64, 300]) {
            check([m, n, 33]);
        }
    }
    check([0, 5, 3]);
    check([5, 0, 3]);
}

#[test]
fn rows_do_not_depend_on_their_batch() {
    for [n, k] in [[7, 35], [300, 576], [66, 1_537]] {
        let mut numbers = Numbers(k as u64);
        let b = numbers.some(n * k);
        let a = numbers.some(130 * k);
        let pools = [Pool::new(0), Pool::new(1), Pool::new(3)];
        for level in Level::all() {
            let alone: Vec<Vec<f32>> = a
                .chunks(k)
                .map(|row| product(level, &pools[0], [1, n, k], row, &b))
                .collect();
            for m in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 47, 48, 49, 63, 64, 130] {
                for first in [0, 130 - m] {
                    for pool in &pools {
                        let rows = &a[first * k..(first + m) * k];
                        let c = product(level, pool, [m, n, k], rows, &b);
                        let expected = alone[first..first + m].concat();
                        assert_eq!(bits(&c), bits(&expected), "{level:?} {m} rows from {first}");
                    }
                }
            }
        }
    }
}

#[test]
fn gaps_between_rows_are_left_alone() {
    let (m, n, k) = (50, 6, 19);
    let mut numbers = Numbers(3);
    let (lda, ldb, ldc) = (k + 3, k + 5, n + 2);
    let (a, b) = (numbers.some(m * lda), numbers.some(n * ldb));
    let packed = |x: &[f32], ld: usize| -> Vec<f32> {
        x.chunks(ld).flat_map(|row| row[..k].to_vec()).collect()
    };
    let pool = Pool::new(1);
    for level in Level::all() {
        for m in [3, m] {
            let expected = product(
                level,
                &pool,
                [m, n, k],
                &packed(&a, lda)[..m * k],
                &packed(&b, ldb),
            );
            let mut c = vec![7.0; m * ldc];
            let (a, c_at) = (a.as_ptr(), c.as_mut_ptr());
            let b = Dense {
                data: b.as_ptr(),
                stride: ldb,
            };
            let product = Product {
                m,
                n,
                k,
                a,
                lda,
                b,
                c: c_at,
                ldc,
                maxima: None,
            };
            // SAFETY: the vectors hold m, n and m rows of these distances.
            unsafe { product.compute(level, &pool) };
            for (row, expected) in c.chunks(ldc).zip(expected.chunks(n)) {
                assert_eq!(bits(&row[..n]), bits(expected));
                assert_eq!(row[n..], [7.0, 7.0]);
            }
        }
    }
}

#[test]
#[should_panic(expected = "B is not 2 x 3")]
fn lengths_are_checked() {
    matmul_nt(1, 2, 3, &[0.0; 3], &[0.0; 5], &mut [0.0; 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_shape(m in 1_usize..90, n in 1_usize..90, k in 0_usize..200) {
        check([m, n, k]);
    }
}
