//! Layers on the CPU: each is one operation that MLX runs in its stream, of kernels
//! of `sluice-kernels`. MLX takes some microseconds to build, hand out and forget an
//! operation, and a layer of a small model has ten that take little longer.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use mlx_host_op::host_op;
use mlx_rs::{Array, Stream, error::Exception};
use sluice_kernels::{
    Quantised,
    attention::{Kernel, KvCache, Place, Shape},
    matmul_nt, ops,
};

use super::{Activation, Attention, Layer, Operations, Output};
use crate::{
    engine::{Logits, ModelError, Row},
    mlx::matrix::{Matrix, slice},
};

pub(super) struct HostOperations {
    stream: Stream,
    attention: Attention,
    /// Shared with the operations of a pass that MLX has not run yet.
    memory: Arc<Memory>,
    /// For each of the attention's sights.
    angles: Vec<Arc<Angles>>,
    positions: Vec<u32>,
    places: Vec<Place>,
    /// The lines whose logits are wanted.
    hidden: Vec<f32>,
    normed: Vec<f32>,
}

/// What layers use one after the other.
struct Memory {
    /// Lost when a kernel panics that changes it.
    cache: Mutex<KvCache>,
    lines: Mutex<Lines>,
}

/// Lines on their way through a layer, and room for what is made of them.
#[derive(Default)]
struct Lines {
    current: Vec<f32>,
    n_values: usize,
    next: Vec<f32>,
}

/// Cosine and sine of each pair of a head, row by row.
#[derive(Clone, Default)]
struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl HostOperations {
    pub(super) fn new(attention: Attention) -> Result<Self, ModelError> {
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
            memory: Arc::new(Memory {
                cache: Mutex::new(cache),
                lines: Mutex::default(),
            }),
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
        let mut cache = self.memory.cache.lock().map_err(|_| lost())?;
        cache
            .begin(&self.places)
            .map_err(|error| ModelError(error.to_string()))
    }

    fn layer(&mut self, index: usize, layer: &Layer, x: &Array) -> Result<Array, Exception> {
        let mut inputs = Inputs(vec![x]);
        let sight = self.attention.sight(index);
        let parts = Parts {
            index,
            kernel: Kernel {
                scale: sight.scale,
                window: sight.window,
            },
            heads: [
                self.attention.n_heads * self.attention.head_dim,
                self.attention.n_kv_heads * self.attention.head_dim,
            ],
            norm_eps: layer.norm_eps,
            attention_norm: inputs.add(&layer.attention_norm),
            qkv: inputs.weights(&layer.qkv),
            qkv_bias: inputs.add_some(layer.qkv_bias.as_ref()),
            head_norms: (layer.head_norms.as_ref())
                .map(|norms| [inputs.add(&norms.queries), inputs.add(&norms.keys)]),
            output: inputs.weights(&layer.output),
            attention_output_norm: inputs.add_some(layer.attention_output_norm.as_ref()),
            mlp_norm: inputs.add(&layer.mlp_norm),
            gate_up: inputs.weights(&layer.gate_up),
            activation: layer.activation,
            down: inputs.weights(&layer.down),
            mlp_output_norm: inputs.add_some(layer.mlp_output_norm.as_ref()),
        };
        let angles = Arc::clone(&self.angles[self.attention.layers[index]]);
        let memory = Arc::clone(&self.memory);
        host_op(x.shape(), &inputs.0, &self.stream, move |inputs, output| {
            parts.compute(inputs, &angles, &memory, output);
        })
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
        if let Ok(mut cache) = self.memory.cache.lock() {
            cache.share(from, slot, n_positions as usize);
        }
    }

    fn release(&mut self, slot: u32) {
        // A cache whose kernel panicked is never used again.
        if let Ok(mut cache) = self.memory.cache.lock() {
            cache.release(slot);
        }
    }
}

/// A layer as its operation knows it. Arrays are named by their place among the
/// operation's inputs, the first of which is the lines that the layer takes.
struct Parts {
    index: usize,
    kernel: Kernel,
    /// Values of a line's query heads, and of its key heads.
    heads: [usize; 2],
    norm_eps: f32,
    attention_norm: usize,
    qkv: Weights,
    qkv_bias: Option<usize>,
    head_norms: Option<[usize; 2]>,
    output: Weights,
    attention_output_norm: Option<usize>,
    mlp_norm: usize,
    gate_up: Weights,
    activation: Activation,
    down: Weights,
    mlp_output_norm: Option<usize>,
}

struct Weights {
    /// `[out, in]`
    shape: [usize; 2],
    data: WeightsData,
}

enum WeightsData {
    Dense(usize),
    Quantised(Arc<Quantised>),
}

/// The inputs of an operation.
struct Inputs<'a>(Vec<&'a Array>);

impl<'a> Inputs<'a> {
    fn add(&mut self, array: &'a Array) -> usize {
        self.0.push(array);
        self.0.len() - 1
    }

    fn add_some(&mut self, array: Option<&'a Array>) -> Option<usize> {
        array.map(|array| self.add(array))
    }

    fn weights(&mut self, matrix: &'a Matrix) -> Weights {
        Weights {
            shape: matrix.shape(),
            data: match matrix {
                Matrix::Dense { weights, .. } => WeightsData::Dense(self.add(weights)),
                Matrix::Quantised(weights) => WeightsData::Quantised(Arc::clone(weights)),
            },
        }
    }
}

impl Parts {
    fn compute(&self, inputs: &[&[f32]], angles: &Angles, memory: &Memory, output: &mut [f32]) {
        // What they hold is nobody's, also after a panic.
        let mut lines = memory.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let x = inputs[0];
        let width = self.output.shape[0];
        let n_lines = x.len() / width;
        let norm = |weight: usize, x: &[f32], out: &mut [f32]| {
            ops::rms_norm(x, inputs[weight], self.norm_eps, out);
        };

        lines.take(x.len(), |out| norm(self.attention_norm, x, out));
        lines.product(&self.qkv, inputs);
        if let Some(bias) = self.qkv_bias {
            for line in lines.values().chunks_exact_mut(inputs[bias].len()) {
                add(line, inputs[bias]);
            }
        }
        if let Some([queries, keys]) = self.head_norms {
            lines.change(n_lines * self.qkv.shape[0], |qkv, out| {
                self.norm_heads(qkv, inputs[queries], inputs[keys], out);
            });
        }
        let Ok(mut cache) = memory.cache.lock() else {
            return output.fill(f32::NAN); // the next `begin` reports it
        };
        lines.change(n_lines * self.heads[0], |qkv, out| {
            cache.attend(self.index, self.kernel, qkv, &angles.cos, &angles.sin, out);
        });
        drop(cache);
        lines.product(&self.output, inputs);
        if let Some(weight) = self.attention_output_norm {
            lines.change(x.len(), |lines, out| norm(weight, lines, out));
        }
        output.copy_from_slice(x);
        add(output, lines.values());

        lines.take(x.len(), |out| norm(self.mlp_norm, output, out));
        lines.product(&self.gate_up, inputs);
        let width = self.down.shape[1];
        lines.change(n_lines * width, |gate_up, out| match self.activation {
            Activation::Silu => ops::swiglu(gate_up, width, out),
            Activation::GeluTanh => geglu(gate_up, width, out),
        });
        lines.product(&self.down, inputs);
        if let Some(weight) = self.mlp_output_norm {
            lines.change(x.len(), |lines, out| norm(weight, lines, out));
        }
        add(output, lines.values());
    }

    /// RMS norm of every query head and every key head.
    fn norm_heads(&self, qkv: &[f32], of_queries: &[f32], of_keys: &[f32], out: &mut [f32]) {
        let [queries, keys] = self.heads;
        let width = queries + 2 * keys;
        for (line, out) in qkv.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let (heads, values) = line.split_at(queries + keys);
            let (out_heads, out_values) = out.split_at_mut(queries + keys);
            let (out_queries, out_keys) = out_heads.split_at_mut(queries);
            ops::rms_norm(&heads[..queries], of_queries, self.norm_eps, out_queries);
            ops::rms_norm(&heads[queries..], of_keys, self.norm_eps, out_keys);
            out_values.copy_from_slice(values);
        }
    }
}

impl Lines {
    fn values(&mut self) -> &mut [f32] {
        &mut self.current[..self.n_values]
    }

    /// Lets `make` write other lines, of `n_values` altogether.
    fn take(&mut self, n_values: usize, make: impl FnOnce(&mut [f32])) {
        self.change(n_values, |_, out| make(out));
    }

    /// Lets `make` make other lines of these, of `n_values` altogether.
    fn change(&mut self, n_values: usize, make: impl FnOnce(&[f32], &mut [f32])) {
        if self.next.len() < n_values {
            self.next.resize(n_values, 0.0);
        }
        make(&self.current[..self.n_values], &mut self.next[..n_values]);
        mem::swap(&mut self.current, &mut self.next);
        self.n_values = n_values;
    }

    fn product(&mut self, weights: &Weights, inputs: &[&[f32]]) {
        let [n_out, n_in] = weights.shape;
        let n_lines = self.n_values / n_in;
        self.change(n_lines * n_out, |x, out| match &weights.data {
            WeightsData::Dense(at) => matmul_nt(n_lines, n_out, n_in, x, inputs[*at], out),
            WeightsData::Quantised(weights) => weights.matmul_nt(n_lines, x, out),
        });
    }
}

fn add(to: &mut [f32], values: &[f32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += value;
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

fn lost() -> ModelError {
    ModelError("the KV cache was lost when a kernel panicked".to_owned())
}
