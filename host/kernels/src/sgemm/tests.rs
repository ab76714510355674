use super::*;
use crate::testing::Numbers;

/// One call, and what the definition gives for it.
struct Case {
    order: i32,
    transposed: [i32; 2],
    sides: [usize; 3],
    alpha: f32,
    beta: f32,
}

/// The value at (row, column) of op(X) for X stored with distance `ld`.
fn at(x: &[f32], ld: usize, row_major: bool, row: usize, column: usize) -> f64 {
    f64::from(if row_major {
        x[row * ld + column]
    } else {
        x[column * ld + row]
    })
}

impl Case {
    fn run(&self) {
        let Self {
            order,
            transposed,
            sides: [m, n, k],
            alpha,
            beta,
        } = *self;
        let by_rows = order == ROW_MAJOR;
        // Whether a row of op(X) is contiguous, and the distance of what is not.
        let layout = |transposed: i32, rows: usize, columns: usize| {
            let along_rows = by_rows == (transposed == AS_IS);
            (along_rows, if along_rows { columns } else { rows } + 3)
        };
        let (a_rows, lda) = layout(transposed[0], m, k);
        let (b_rows, ldb) = layout(transposed[1], k, n);
        let (c_rows, ldc) = layout(AS_IS, m, n);
        let mut numbers = Numbers(11);
        let a = numbers.some(lda * (m.max(k) + 3));
        let b = numbers.some(ldb * (k.max(n) + 3));
        let before = numbers.some(ldc * (m.max(n) + 3));
        let mut c = before.clone();
        let [m_, n_, k_, lda_, ldb_, ldc_] =
            [m, n, k, lda, ldb, ldc].map(|x| i32::try_from(x).unwrap_or(-1));
        // SAFETY: the vectors hold the matrices with room to spare.
        unsafe {
            cblas_sgemm(
                order,
                transposed[0],
                transposed[1],
                m_,
                n_,
                k_,
                alpha,
                a.as_ptr(),
                lda_,
                b.as_ptr(),
                ldb_,
                beta,
                c.as_mut_ptr(),
                ldc_,
            );
        }
        let mut touched = vec![false; c.len()];
        for i in 0..m {
            for j in 0..n {
                let product: f64 = (0..k)
                    .map(|p| at(&a, lda, a_rows, i, p) * at(&b, ldb, b_rows, p, j))
                    .sum();
                let old = at(&before, ldc, c_rows, i, j);
                let expected = f64::from(alpha) * product + f64::from(beta) * old;
                let index = if c_rows { i * ldc + j } else { j * ldc + i };
                touched[index] = true;
                let error = (f64::from(c[index]) - expected).abs();
                assert!(
                    error < 1e-4,
                    "{order} {transposed:?} {i} {j}: {} {expected}",
                    c[index]
                );
            }
        }
        for index in 0..c.len() {
            assert!(touched[index] || c[index].to_bits() == before[index].to_bits());
        }
    }
}

#[test]
fn every_order_transpose_and_factor() {
    for order in [ROW_MAJOR, COLUMN_MAJOR] {
        for a in [AS_IS, TRANSPOSED, CONJUGATE_TRANSPOSED] {
            for b in [AS_IS, TRANSPOSED, CONJUGATE_TRANSPOSED] {
                for [alpha, beta] in [[1.0, 0.0], [1.0, 1.0], [0.5, -2.0], [0.0, 0.5], [0.0, 0.0]] {
                    for sides in [[1, 1, 1], [3, 5, 7], [20, 9, 33], [4, 3, 0], [1, 40, 17]] {
                        Case {
                            order,
                            transposed: [a, b],
                            sides,
                            alpha,
                            beta,
                        }
                        .run();
                    }
                }
            }
        }
    }
}

#[test]
fn beta_zero_does_not_read_c() {
    let (a, b) = ([2.0_f32], [3.0_f32]);
    for transposed in [AS_IS, TRANSPOSED] {
        for (alpha, expected) in [(1.0, 6.0), (0.5, 3.0), (0.0, 0.0)] {
            let mut c = [f32::NAN];
            let (pa, pb, pc) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
            // SAFETY: 1 x 1 matrices.
            unsafe {
                cblas_sgemm(
                    101, 111, transposed, 1, 1, 1, alpha, pa, 1, pb, 1, 0.0, pc, 1,
                );
            }
            assert_eq!(c, [expected]);
        }
    }
}

#[test]
fn bad_arguments_change_nothing() {
    let (a, b) = ([1.0_f32; 4], [1.0_f32; 4]);
    let good = [101, 111, 112, 2, 2, 2, 2, 2, 2];
    let with = |change: &[(usize, i32)]| {
        let mut arguments = good;
        for &(at, value) in change {
            arguments[at] = value;
        }
        let [order, ta, tb, m, n, k, lda, ldb, ldc] = arguments;
        let mut c = [7.0_f32; 4];
        let (pa, pb, pc) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        // SAFETY: valid 2 x 2 matrices, or arguments that must be refused.
        unsafe { cblas_sgemm(order, ta, tb, m, n, k, 1.0, pa, lda, pb, ldb, 0.0, pc, ldc) };
        c
    };
    assert_eq!(with(&[]), [2.0; 4]);
    let bad = [
        (0, 100),
        (1, 110),
        (2, 0),
        (3, -1),
        (4, -1),
        (5, -1),
        (6, 1),
        (7, 1),
        (8, 1),
    ];
    for change in bad {
        assert_eq!(with(&[change]), [7.0; 4], "{change:?}");
    }
    // Nothing to do is not bad.
    assert_eq!(with(&[(3, 0)]), [7.0; 4]);
    assert_eq!(with(&[(4, 0)]), [7.0; 4]);
}

#[test]
fn calls_are_counted() {
    let before = sgemm_calls();
    beta_zero_does_not_read_c();
    assert!(sgemm_calls() >= before + 6);
}
