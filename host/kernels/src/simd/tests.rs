use super::*;
use crate::testing::Numbers;

/// Computes `e^x` for each value in place.
struct Exps<'a>(&'a mut [f32]);

impl Kernel for Exps<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for part in self.0.chunks_mut(S::LANES) {
            // SAFETY: a part has up to LANES values.
            unsafe {
                let v = s.load_part(part.as_ptr(), part.len());
                s.store_part(part.as_mut_ptr(), exp(s, v), part.len());
            }
        }
    }
}

#[test]
fn exp_is_accurate() {
    let xs: Vec<f32> = (0..=3_500_000).map(|i| -87.0 + i as f32 * 5e-5).collect();
    for level in Level::all() {
        let mut ys = xs.clone();
        level.run(Exps(&mut ys));
        let mut worst = 0.0_f64;
        for (&x, &y) in xs.iter().zip(&ys) {
            let expected = f64::from(x).exp();
            worst = worst.max((f64::from(y) / expected - 1.0).abs());
        }
        assert!(worst <= 2e-7, "{level:?}: {worst:e}");
    }
}

#[test]
fn exp_at_the_ends() {
    for level in Level::all() {
        let mut ys = [
            f32::NEG_INFINITY,
            -1e30,
            -88.0,
            0.0,
            88.0,
            1e30,
            f32::INFINITY,
        ];
        level.run(Exps(&mut ys));
        assert_eq!(ys[..4], [0.0, 0.0, 0.0, 1.0], "{level:?}");
        assert!(
            (ys[4] / 1.651_636_3e38 - 1.0).abs() < 2e-7,
            "{level:?}: e^88 = {:e}",
            ys[4]
        );
        assert!(
            ys[5] > 2e38 && ys[5].is_finite() && ys[6] == ys[5],
            "{level:?}: {ys:?}"
        );
    }
}

/// Every operation against the same on single values.
struct Lanes<'a>(&'a mut Numbers);

impl Kernel for Lanes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = S::LANES;
        let inputs: [Vec<f32>; 4] = std::array::from_fn(|_| self.0.some(n));
        let mut v = [s.splat(0.0); 4];
        for (v, input) in v.iter_mut().zip(&inputs) {
            // SAFETY: `n` values.
            *v = unsafe { s.load(input.as_ptr()) };
        }
        let [a, b, c, _] = &inputs;
        check(s, s.add(v[0], v[1]), |i| a[i] + b[i]);
        check(s, s.sub(v[0], v[1]), |i| a[i] - b[i]);
        check(s, s.mul(v[0], v[1]), |i| a[i] * b[i]);
        check(s, s.div(v[0], v[1]), |i| a[i] / b[i]);
        check(s, s.min(v[0], v[1]), |i| a[i].min(b[i]));
        check(s, s.max(v[0], v[1]), |i| a[i].max(b[i]));
        check(s, s.keep_at_least(v[0], v[1], v[2]), |i| {
            if b[i] >= c[i] { a[i] } else { 0.0 }
        });
        let tens = s.mul(v[0], s.splat(10.0));
        check(s, s.round(tens), |i| (a[i] * 10.0).round_ties_even());
        check(s, s.scale(v[1], s.round(tens)), |i| {
            b[i] * (a[i] * 10.0).round_ties_even().exp2()
        });
        let bits = self.0.bits() as u32;
        check(s, s.blend(bits, v[0], v[1]), |i| {
            if bits >> i & 1 == 1 { a[i] } else { b[i] }
        });
        let at_least = s.at_least(v[0], v[1]);
        assert_eq!(at_least, (0..n).map(|i| u32::from(a[i] >= b[i]) << i).sum());
        assert_eq!(s.largest(v[0]), a.iter().copied().fold(-2.0, f32::max));

        let sums = s.sum4(v);
        for (i, input) in inputs.iter().enumerate() {
            let expected: f64 = input.iter().map(|&x| f64::from(x)).sum();
            assert!((f64::from(sums[i]) - expected).abs() < 1e-5);
            assert_eq!(sums[i].to_bits(), s.sum(v[i]).to_bits());
        }
        let fused = values(s, s.mul_add(v[0], v[1], v[2]));
        for i in 0..n {
            let expected = f64::from(a[i]) * f64::from(b[i]) + f64::from(c[i]);
            assert!((f64::from(fused[i]) - expected).abs() < 2e-7);
        }
        for part in 0..=n {
            // SAFETY: `part` values.
            let loaded = unsafe { s.load_part(a.as_ptr(), part) };
            check(s, loaded, |i| if i < part { a[i] } else { 0.0 });
            let mut stored = b.clone();
            // SAFETY: `part` values.
            unsafe { s.store_part(stored.as_mut_ptr(), v[0], part) };
            for i in 0..n {
                assert_eq!(stored[i], if i < part { a[i] } else { b[i] });
            }
        }
    }
}

#[inline(always)]
fn values<S: Simd>(s: S, v: S::V) -> [f32; 16] {
    let mut out = [0.0; 16];
    // SAFETY: no vector is longer than 16.
    unsafe { s.store(out.as_mut_ptr(), v) };
    out
}

#[inline(always)]
fn check<S: Simd>(s: S, v: S::V, expected: impl Fn(usize) -> f32) {
    for (i, x) in values(s, v).into_iter().enumerate().take(S::LANES) {
        assert_eq!(x, expected(i), "lane {i}");
    }
}

#[test]
fn lanes_compute_what_single_values_do() {
    let mut numbers = Numbers(1);
    for level in Level::all() {
        for _ in 0..200 {
            level.run(Lanes(&mut numbers));
        }
    }
}

#[test]
fn nan_is_at_least_nothing() {
    struct Nan;
    impl Kernel for Nan {
        type Output = [u32; 2];
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [u32; 2] {
            let nan = s.splat(f32::NAN);
            [s.at_least(nan, s.splat(0.0)), s.at_least(s.splat(0.0), nan)]
        }
    }
    for level in Level::all() {
        assert_eq!(level.run(Nan), [0, 0], "{level:?}");
    }
}
