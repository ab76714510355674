//! What lies between the matrix products of a layer: norm, activation and the
//! angles of the rotary embedding. Each row is computed by itself.

use crate::{
    pool::Pool,
    simd::{Kernel, Level, Simd, exp},
};

/// Below this many values a second thread costs more than it brings.
const WORTH_A_THREAD: usize = 16 * 1024;

/// RMS norm of each row of `x`: out = weight · x / √(mean(x²) + eps). Rows are
/// as long as `weight`.
///
/// # Panics
/// When `x` is not whole rows or `out` is not as long as `x`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    rms_norm_on(Level::best(), Pool::shared(), x, weight, eps, out);
}

fn rms_norm_on(level: Level, pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output differ in length");
    let width = weight.len();
    each_row(pool, width, x, width, out, &|x, out| {
        level.run(RmsNorm {
            x,
            weight,
            eps,
            out,
        });
    });
}

/// SwiGLU of each row \[gate | up\], both `width` long:
/// out = gate / (1 + e^-gate) · up.
///
/// # Panics
/// When `out` is not whole rows of `width` or `gate_up` is not twice as long.
pub fn swiglu(gate_up: &[f32], width: usize, out: &mut [f32]) {
    swiglu_on(Level::best(), Pool::shared(), gate_up, width, out);
}

fn swiglu_on(level: Level, pool: &Pool, gate_up: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(
        Some(gate_up.len()),
        out.len().checked_mul(2),
        "the input is not gate and up"
    );
    each_row(pool, 2 * width, gate_up, width, out, &|gate_up, out| {
        let (gate, up) = gate_up.split_at(width);
        level.run(SwiGlu { gate, up, out });
    });
}

/// Fills `cos` and `sin` with a row of `inv_freq.len()` values for each
/// position: those of position · inverse frequency, computed in f64.
pub fn rope_tables(positions: &[u32], inv_freq: &[f64], cos: &mut Vec<f32>, sin: &mut Vec<f32>) {
    cos.clear();
    sin.clear();
    for &position in positions {
        for frequency in inv_freq {
            let (s, c) = (f64::from(position) * frequency).sin_cos();
            cos.push(c as f32);
            sin.push(s as f32);
        }
    }
}

/// Calls `work` with each row of `x` and its row of `out`, on several threads
/// if that pays.
fn each_row(
    pool: &Pool,
    x_width: usize,
    x: &[f32],
    out_width: usize,
    out: &mut [f32],
    work: &(dyn Fn(&[f32], &mut [f32]) + Sync),
) {
    if out.is_empty() {
        return;
    }
    let n_rows = out.len().checked_div(out_width).unwrap_or(0);
    assert_eq!(
        n_rows * out_width,
        out.len(),
        "the output is not whole rows of {out_width}"
    );
    let n_threads = (out.len() / WORTH_A_THREAD).clamp(1, pool.n_threads());
    let n_pieces = if n_threads == 1 {
        1
    } else {
        (4 * n_threads).min(n_rows)
    };
    let height = n_rows.div_ceil(n_pieces);
    let to = Shared(out.as_mut_ptr());
    pool.for_each(n_rows.div_ceil(height), n_threads, |piece| {
        for r in piece * height..((piece + 1) * height).min(n_rows) {
            // SAFETY: row r lies within `out`, which is borrowed mutably, and
            // is in no other piece.
            let row =
                unsafe { std::slice::from_raw_parts_mut(to.get().add(r * out_width), out_width) };
            work(&x[r * x_width..(r + 1) * x_width], row);
        }
    });
}

/// A pointer that several threads may use, each for a part of its own.
struct Shared(*mut f32);

// SAFETY: see above; the uses say which part.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> *mut f32 {
        self.0
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.x.len();
        assert!(self.weight.len() == width && self.out.len() == width);
        let (x, weight, out) = (self.x.as_ptr(), self.weight.as_ptr(), self.out.as_mut_ptr());
        let whole = width - width % S::LANES;
        // SAFETY: the three slices are `width` long; the loops stay below it.
        unsafe {
            let mut squares = s.splat(0.0);
            for at in (0..whole).step_by(S::LANES) {
                let v = s.load(x.add(at));
                squares = s.mul_add(v, v, squares);
            }
            let rest = width - whole;
            let last = s.load_part(x.add(whole), rest);
            squares = s.mul_add(last, last, squares);
            let mean = s.sum(squares) / width as f32;
            let factor = s.splat(1.0 / (mean + self.eps).sqrt());
            for at in (0..whole).step_by(S::LANES) {
                let v = s.mul(s.load(x.add(at)), factor);
                s.store(out.add(at), s.mul(v, s.load(weight.add(at))));
            }
            let v = s.mul(s.mul(last, factor), s.load_part(weight.add(whole), rest));
            s.store_part(out.add(whole), v, rest);
        }
    }
}

struct SwiGlu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.out.len();
        assert!(self.gate.len() == width && self.up.len() == width);
        let (gate, up, out) = (self.gate.as_ptr(), self.up.as_ptr(), self.out.as_mut_ptr());
        let whole = width - width % S::LANES;
        let rest = width - whole;
        // SAFETY: the three slices are `width` long; the loops stay below it.
        unsafe {
            for at in (0..whole).step_by(S::LANES) {
                s.store(
                    out.add(at),
                    gated(s, s.load(gate.add(at)), s.load(up.add(at))),
                );
            }
            let (g, u) = (
                s.load_part(gate.add(whole), rest),
                s.load_part(up.add(whole), rest),
            );
            s.store_part(out.add(whole), gated(s, g, u), rest);
        }
    }
}

#[inline(always)]
fn gated<S: Simd>(s: S, gate: S::V, up: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), gate));
    s.mul(s.div(gate, s.add(s.splat(1.0), e)), up)
}

#[cfg(test)]
mod tests;
