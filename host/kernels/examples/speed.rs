//! How long the kernels take on this machine: medians, for people to read.
//!
//! ```sh
//! cargo run --release -p sluice-kernels --example speed
//! ```

use std::{hint::black_box, time::Instant};

use sluice_kernels::{
    Format, Quantised,
    attention::{Kernel, KvCache, Place, Shape},
    matmul_nt, ops, row,
};

/// The median time of `n` calls, in microseconds.
fn median(n: usize, mut call: impl FnMut()) -> f64 {
    call();
    let mut times: Vec<f64> = (0..n)
        .map(|_| {
            let since = Instant::now();
            call();
            since.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[n / 2]
}

fn numbers(n: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn products() {
    println!("C[m, n] = A[m, k] B[n, k]^T        us   GFLOP/s  GB/s of B");
    for [k, n] in [[576, 1_536], [1_536, 576], [576, 49_152]] {
        // Enough copies of the weights that they come from memory, as in a
        // forward pass.
        let n_copies = (400_000_000 / (4 * n * k)).clamp(1, 100);
        let weights: Vec<Vec<f32>> = (0..n_copies).map(|_| numbers(n * k)).collect();
        for m in [1, 2, 4, 8, 16, 32, 64, 128, 512] {
            let a = numbers(m * k);
            let mut c = vec![0.0; m * n];
            let mut turn = 0;
            let calls = (10_000_000_000 / (m * n * k)).clamp(3, 101);
            let us = median(calls, || {
                turn = (turn + 1) % n_copies;
                matmul_nt(m, n, k, &a, &weights[turn], &mut c);
            });
            black_box(&c);
            let flops = 2e-3 * (m * n * k) as f64 / us;
            let bytes = 4e-3 * (n * k) as f64 / us;
            println!("m {m:4}  k {k:5}  n {n:6}  {us:10.1}  {flops:8.1}  {bytes:8.1}");
        }
    }
}

/// Weights as they are quantised against the same in f32, in turn.
fn quantised() {
    println!("\nC[m, n] = A[m, k] W[n, k]^T, median us: W quantised, W in f32, ratio");
    for [k, n, n_bits] in [
        [576, 960, 4],
        [576, 576, 4],
        [576, 3_072, 4],
        [1_536, 576, 4],
        [576, 49_152, 8],
    ] {
        let n_copies = (400_000_000 / (4 * n * k)).clamp(2, 100);
        let format = Format {
            group_size: 32,
            n_bits,
        };
        let words: Vec<u32> = numbers(n * k * n_bits / 32)
            .iter()
            .map(|x| x.to_bits().wrapping_mul(0x9e37_79b9))
            .collect();
        let scales = vec![0.0625; n * k / 32];
        let new = |_| Quantised::new([n, k], format, &words, &scales, &scales);
        let quantised: Vec<Quantised> = (0..n_copies).filter_map(new).collect();
        let dense: Vec<Vec<f32>> = (0..n_copies).map(|_| numbers(n * k)).collect();
        for m in [1, 2, 4, 8, 16, 64] {
            let a = numbers(m * k);
            let mut c = vec![0.0; m * n];
            let mut times = [vec![], vec![]];
            for turn in 0..(6_000_000_000 / (m * n * k)).clamp(11, 301) {
                let turn = turn % n_copies;
                let since = Instant::now();
                quantised[turn].matmul_nt(m, &a, &mut c);
                times[0].push(since.elapsed().as_secs_f64() * 1e6);
                let since = Instant::now();
                matmul_nt(m, n, k, &a, &dense[turn], &mut c);
                times[1].push(since.elapsed().as_secs_f64() * 1e6);
            }
            black_box(&c);
            let [packed, plain] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            });
            let ratio = plain / packed;
            println!("m {m:4}  k {k:5}  n {n:6}  {packed:10.1}  {plain:10.1}  {ratio:6.2}");
        }
    }
}

fn rows() {
    for n in [49_152, 262_144] {
        let logits: Vec<f32> = numbers(3 * n)
            .chunks(3)
            .map(|x| 12.0 * x[0] * x[1] * x[2])
            .collect();
        println!("\none logits row of {n}, in us");
        let (mut ids, mut best) = (Vec::new(), Vec::new());
        let mut maxima = Vec::new();
        let us = median(101, || {
            let _ = black_box(row::scan(black_box(&logits), &mut maxima));
        });
        println!("scan                 {us:8.1}");
        let mut rows = row::Logits::from(&logits[..]);
        let mut one = rows.row();
        let Ok(scanned) = one.scan() else { return };
        for k in [1, 40, 256, 1_000, 4_000, n] {
            let us = median(101, || {
                black_box(scanned).top_k(k, &mut ids, &mut best);
            });
            println!("top_k({k:6})        {us:8.1}");
        }
        let us = median(101, || {
            black_box(black_box(scanned).log_sum_exp(0.7));
        });
        println!("log_sum_exp          {us:8.1}");
        let us = median(101, || {
            let _ = black_box(row::check(black_box(&logits)));
        });
        println!("check                {us:8.1}");
        let words: Vec<u32> = numbers(n / 32).iter().map(|x| x.to_bits() << 7).collect();
        let mut row = logits.clone();
        let us = median(101, || row::add_masked(black_box(&mut row), &words, 0.001));
        println!("add_masked           {us:8.1}");
        let us = median(101, || row::mask(black_box(&mut row), &words));
        println!("mask                 {us:8.1}");
    }
}

fn between_products() {
    println!("\nbetween the products of a layer, in us");
    let (width, inner) = (576, 1_536);
    for m in [1, 8, 16, 512] {
        let (x, weight) = (numbers(m * width), numbers(width));
        let gate_up = numbers(2 * m * inner);
        let (mut normed, mut gated) = (vec![0.0; m * width], vec![0.0; m * inner]);
        let norm = median(101, || {
            ops::rms_norm(black_box(&x), &weight, 1e-5, &mut normed);
        });
        let swiglu = median(101, || ops::swiglu(black_box(&gate_up), inner, &mut gated));
        println!("m {m:4}  rms_norm {norm:8.1}  swiglu {swiglu:8.1}");
    }
    let shape = Shape {
        n_layers: 1,
        n_heads: 9,
        n_kv_heads: 3,
        head_dim: 64,
    };
    let kernel = Kernel {
        scale: 0.125,
        window: None,
    };
    for (n_slots, length) in [(1, 100), (1, 2_000), (8, 300), (16, 300), (16, 2_000)] {
        let us = attention(shape, kernel, n_slots, length, 1);
        println!("attention, {n_slots:2} rows after {length:4} positions  {us:10.1}");
    }
    for length in [512, 1_500] {
        let us = attention(shape, kernel, 1, 0, length);
        println!("attention, {length:4} rows of a prompt       {us:10.1}");
    }
}

/// The median time of a pass of `n_rows` rows in each of some slots, after
/// `length` positions.
fn attention(shape: Shape, kernel: Kernel, n_slots: u32, length: u32, n_rows: u32) -> f64 {
    let Ok(mut cache) = KvCache::new(shape) else {
        return f64::NAN;
    };
    let mut pass = |first: u32, n: u32, calls: usize| {
        let places: Vec<Place> = (0..n_slots)
            .flat_map(|slot| (first..first + n).map(move |position| Place { position, slot }))
            .collect();
        let qkv = numbers(places.len() * shape.qkv_width());
        let angles = numbers(places.len() * 32);
        let mut out = vec![0.0; places.len() * shape.out_width()];
        if cache.begin(&places).is_err() {
            return f64::NAN;
        }
        median(calls, || {
            cache.attend(0, kernel, black_box(&qkv), &angles, &angles, &mut out);
        })
    };
    if length > 0 {
        pass(0, length, 1);
    }
    pass(length, n_rows, 21)
}

fn main() {
    quantised();
    products();
    rows();
    between_products();
}
