use super::*;
use crate::testing::{Numbers, bits};

const WIDTHS: [usize; 9] = [1, 3, 8, 15, 16, 17, 64, 100, 576];

#[test]
fn rms_norm_is_its_formula() {
    let mut numbers = Numbers(1);
    for width in WIDTHS {
        let (x, weight) = (numbers.some(3 * width), numbers.some(width));
        for level in Level::all() {
            let mut out = vec![f32::NAN; 3 * width];
            rms_norm_on(level, &Pool::new(0), &x, &weight, 1e-5, &mut out);
            for (x, out) in x.chunks(width).zip(out.chunks(width)) {
                let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
                let root = (squares / width as f64 + f64::from(1e-5_f32)).sqrt();
                for i in 0..width {
                    let expected = f64::from(weight[i]) * f64::from(x[i]) / root;
                    assert!((f64::from(out[i]) - expected).abs() <= 1e-6 * expected.abs() + 1e-12);
                }
            }
        }
    }
}

#[test]
fn swiglu_is_its_formula() {
    let mut numbers = Numbers(2);
    for width in WIDTHS {
        let mut x = numbers.some(4 * width);
        for x in &mut x {
            *x *= 12.0;
        }
        for level in Level::all() {
            let mut out = vec![f32::NAN; 2 * width];
            swiglu_on(level, &Pool::new(0), &x, width, &mut out);
            for (x, out) in x.chunks(2 * width).zip(out.chunks(width)) {
                for i in 0..width {
                    let (gate, up) = (f64::from(x[i]), f64::from(x[width + i]));
                    let expected = gate / (1.0 + (-gate).exp()) * up;
                    let error = (f64::from(out[i]) - expected).abs();
                    assert!(
                        error <= 1e-6 * expected.abs() + 1e-12,
                        "{level:?} {gate} {up}"
                    );
                }
            }
        }
    }
}

#[test]
fn swiglu_of_extreme_gates() {
    for level in Level::all() {
        let mut out = [f32::NAN; 4];
        let gate_up = [-1e30, -100.0, 100.0, 1e30, 1.0, 1.0, 2.0, 1.0];
        swiglu_on(level, &Pool::new(0), &gate_up, 4, &mut out);
        assert!(
            out[0].abs() < 1e-6 && out[1].abs() < 1e-6,
            "{level:?}: {out:?}"
        );
        assert_eq!(out[2..], [200.0, 1e30], "{level:?}");
    }
}

#[test]
fn rows_do_not_depend_on_their_batch() {
    let mut numbers = Numbers(3);
    let (n_rows, width) = (150, 300);
    let (x, weight) = (numbers.some(2 * n_rows * width), numbers.some(width));
    for level in Level::all() {
        let alone = Pool::new(0);
        let mut normed = vec![0.0; 2 * n_rows * width];
        let mut gated = vec![0.0; n_rows * width];
        for r in 0..n_rows {
            let two = 2 * r * width..2 * (r + 1) * width;
            let one = r * width..(r + 1) * width;
            swiglu_on(level, &alone, &x[two], width, &mut gated[one]);
        }
        for r in 0..2 * n_rows {
            let one = r * width..(r + 1) * width;
            rms_norm_on(
                level,
                &alone,
                &x[one.clone()],
                &weight,
                1e-5,
                &mut normed[one],
            );
        }
        for n_helpers in [0, 1, 3] {
            let pool = Pool::new(n_helpers);
            let mut out = vec![f32::NAN; 2 * n_rows * width];
            rms_norm_on(level, &pool, &x, &weight, 1e-5, &mut out);
            assert_eq!(bits(&out), bits(&normed), "{level:?} {n_helpers}");
            let mut out = vec![f32::NAN; n_rows * width];
            swiglu_on(level, &pool, &x, width, &mut out);
            assert_eq!(bits(&out), bits(&gated), "{level:?} {n_helpers}");
        }
    }
}

#[test]
fn rope_tables_worked_by_hand() {
    // Quarter turns: 2π/4 a position for the first pair, 2π/8 for the second.
    let turn = std::f64::consts::TAU;
    let (mut cos, mut sin) = (vec![9.0], vec![9.0]);
    rope_tables(&[0, 1, 2], &[turn / 4.0, turn / 8.0], &mut cos, &mut sin);
    let half = 0.5_f32.sqrt();
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-7);
    assert_eq!((cos.len(), sin.len()), (6, 6));
    assert!(close(&cos, &[1.0, 1.0, 0.0, half, -1.0, 0.0]), "{cos:?}");
    assert!(close(&sin, &[0.0, 0.0, 1.0, half, 0.0, 1.0]), "{sin:?}");
}

#[test]
fn nothing_gives_nothing() {
    rms_norm(&[], &[], 1e-5, &mut []);
    rms_norm(&[], &[1.0], 1e-5, &mut []);
    swiglu(&[], 3, &mut []);
}

#[test]
#[should_panic(expected = "not whole rows of 2")]
fn part_of_a_row_is_refused() {
    rms_norm(&[0.0; 3], &[0.0; 2], 1e-5, &mut [0.0; 3]);
}
