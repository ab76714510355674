//! A layer's operations on the CPU: kernels of `sluice-kernels` that MLX runs
//! in its stream.

use std::sync::{Arc, Mutex};

use mlx_host_op::host_op;
use mlx_rs::{Array, Stream, error::Exception, with_stream};
use sluice_kernels::{
    attention::{Kernel, KvCache, Place, Shape},
    ops,
};

use super::{Activation, Attention, HeadNorms, Operations, Output};
use crate::{
    engine::{Logits, ModelError, Row},
    mlx::{error::message, matrix::slice},
};

pub(super) struct HostOperations {
    stream: Stream,
    attention: Attention,
    /// Shared with the operations of a pass that MLX has not run yet.
    cache: Arc<Mutex<KvCache>>,
    /// For each of the attention's sights.
    angles: Vec<Arc<Angles>>,
    positions: Vec<u32>,
    places: Vec<Place>,
    /// The lines whose logits are wanted.
    hidden: Vec<f32>,
    normed: Vec<f32>,
}

/// Cosine and sine of each pair of a head, row by row.
#[derive(Clone, Default)]
struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl HostOperations {
    pub(super) fn new(attention: Attention) -> Result<Self, ModelError> {
        #[cfg(target_os = "linux")]
        check_matrix_product()?;
        let shape = Shape {
            n_layers: attention.layers.len(),
            n_heads: attention.n_heads,
            n_kv_heads: attention.n_kv_heads,
            head_dim: attention.head_dim,
        };
        let cache = KvCache::new(shape).map_err(|error| ModelError(error.to_string()))?;
        Ok(Self {
            stream: Stream::cpu(),
            angles: attention.sights.iter().map(|_| Arc::default()).collect(),
            attention,
            cache: Arc::new(Mutex::new(cache)),
            positions: Vec::new(),
            places: Vec::new(),
            hidden: Vec::new(),
            normed: Vec::new(),
        })
    }
}

impl Operations for HostOperations {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn begin(&mut self, rows: &[Row]) -> Result<(), ModelError> {
        self.places.clear();
        self.places.extend(rows.iter().map(|row| Place {
            position: row.position,
            slot: row.slot,
        }));
        self.positions.clear();
        self.positions.extend(rows.iter().map(|row| row.position));
        // Nobody else holds angles between passes, so this copies nothing.
        for (angles, sight) in self.angles.iter_mut().zip(&self.attention.sights) {
            let Angles { cos, sin } = Arc::make_mut(angles);
            ops::rope_tables(&self.positions, &sight.rope_frequencies, cos, sin);
        }
        let mut cache = self.cache.lock().map_err(|_| lost())?;
        cache
            .begin(&self.places)
            .map_err(|error| ModelError(error.to_string()))
    }

    fn rms_norm(&self, x: &Array, weight: &Array, eps: f32) -> Result<Array, Exception> {
        host_op(
            x.shape(),
            &[x, weight],
            &self.stream,
            move |inputs, output| {
                ops::rms_norm(inputs[0], inputs[1], eps, output);
            },
        )
    }

    fn head_norm(&self, qkv: &Array, norms: &HeadNorms, eps: f32) -> Result<Array, Exception> {
        let Attention {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = self.attention;
        let (queries, keys) = (n_heads * head_dim, n_kv_heads * head_dim);
        let inputs = [qkv, &norms.queries, &norms.keys];
        host_op(qkv.shape(), &inputs, &self.stream, move |inputs, output| {
            let width = queries + 2 * keys;
            let lines = inputs[0].chunks_exact(width);
            for (line, out) in lines.zip(output.chunks_exact_mut(width)) {
                let (heads, values) = line.split_at(queries + keys);
                let (out_heads, out_values) = out.split_at_mut(queries + keys);
                let (out_queries, out_keys) = out_heads.split_at_mut(queries);
                ops::rms_norm(&heads[..queries], inputs[1], eps, out_queries);
                ops::rms_norm(&heads[queries..], inputs[2], eps, out_keys);
                out_values.copy_from_slice(values);
            }
        })
    }

    fn gated(
        &self,
        gate_up: &Array,
        width: usize,
        activation: Activation,
    ) -> Result<Array, Exception> {
        let shape = [gate_up.dim(0), width as i32];
        host_op(
            &shape,
            &[gate_up],
            &self.stream,
            move |inputs, output| match activation {
                Activation::Silu => ops::swiglu(inputs[0], width, output),
                Activation::GeluTanh => geglu(inputs[0], width, output),
            },
        )
    }

    fn attention(&mut self, layer: usize, qkv: &Array) -> Result<Array, Exception> {
        let shape = [
            qkv.dim(0),
            (self.attention.n_heads * self.attention.head_dim) as i32,
        ];
        let sight = self.attention.sight(layer);
        let kernel = Kernel {
            scale: sight.scale,
            window: sight.window,
        };
        let angles = Arc::clone(&self.angles[self.attention.layers[layer]]);
        let cache = Arc::clone(&self.cache);
        host_op(
            &shape,
            &[qkv],
            &self.stream,
            move |inputs, output| match cache.lock() {
                Ok(mut cache) => {
                    cache.attend(layer, kernel, inputs[0], &angles.cos, &angles.sin, output);
                }
                // The next `begin` reports it.
                Err(_) => output.fill(f32::NAN),
            },
        )
    }

    /// MLX computes up to the last layer; the last product goes straight to
    /// memory of ours, for rows are changed in place afterwards.
    fn logits(
        &mut self,
        x: &Array,
        wanted: &[usize],
        output: &Output<'_>,
        logits: &mut Logits,
    ) -> Result<(), Exception> {
        x.eval()?;
        let width = output.norm.size();
        let lines = slice(x)?;
        self.hidden.clear();
        for &row in wanted {
            self.hidden
                .extend_from_slice(&lines[row * width..(row + 1) * width]);
        }
        self.normed.resize(self.hidden.len(), 0.0);
        ops::rms_norm(
            &self.hidden,
            slice(output.norm)?,
            output.eps,
            &mut self.normed,
        );
        output.head.logits(&self.normed, logits)
    }

    fn bytes_per_position(&self) -> usize {
        self.attention.bytes_per_position()
    }

    fn share(&mut self, from: u32, slot: u32, n_positions: u32) {
        if let Ok(mut cache) = self.cache.lock() {
            cache.share(from, slot, n_positions as usize);
        }
    }

    fn release(&mut self, slot: u32) {
        // A cache whose kernel panicked is never used again.
        if let Ok(mut cache) = self.cache.lock() {
            cache.release(slot);
        }
    }
}

/// `gelu(gate) · up`, line by line, gelu being the one with tanh.
///
/// With `t = 2 √(2/π) (1 + 0.044715 gate²)`, gelu(gate) is
/// `gate · sigmoid(t · gate)`, so that `gelu(gate) · up` is
/// `silu(t · gate) · (up / t)`, which is what SwiGLU computes.
fn geglu(gate_up: &[f32], width: usize, output: &mut [f32]) {
    const TWICE_SLOPE: f32 = 1.595_769;
    // Far beyond where the sigmoid is 0 or 1, and far from overflow.
    const LARGEST_SQUARE: f32 = 1e6;
    let mut scaled = vec![0.0; gate_up.len()];
    let lines = gate_up.chunks_exact(2 * width);
    for (line, scaled) in lines.zip(scaled.chunks_exact_mut(2 * width)) {
        let (gate, up) = line.split_at(width);
        let (scaled_gate, scaled_up) = scaled.split_at_mut(width);
        for index in 0..width {
            let square = (gate[index] * gate[index]).min(LARGEST_SQUARE);
            let t = TWICE_SLOPE * (1.0 + 0.044_715 * square);
            scaled_gate[index] = t * gate[index];
            scaled_up[index] = up[index] / t;
        }
    }
    ops::swiglu(&scaled, width, output);
}

/// libmlx takes its matrix product from the executable, if that was linked to
/// show it. Otherwise it silently falls back to one that is ten times slower
/// and whose rows depend on their batch.
#[cfg(target_os = "linux")]
fn check_matrix_product() -> Result<(), ModelError> {
    let before = sluice_kernels::sgemm_calls();
    let square = Array::from_slice(&[1.0_f32; 256], &[16, 16]);
    with_stream(&Stream::cpu(), || square.matmul(&square)?.eval())
        .map_err(|exception| ModelError(message(&exception)))?;
    if sluice_kernels::sgemm_calls() == before {
        return Err(ModelError(
            "this program was linked without -Wl,--export-dynamic-symbol=cblas_sgemm, so MLX does not use its matrix product".to_owned(),
        ));
    }
    Ok(())
}

fn lost() -> ModelError {
    ModelError("the KV cache was lost when a kernel panicked".to_owned())
}
