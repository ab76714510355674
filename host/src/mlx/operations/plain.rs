//! Layers of MLX's own operations, on any of its devices.

use std::collections::BTreeMap;

use mlx_rs::{
    Array, Stream,
    error::Exception,
    fast::{self, ScaledDotProductAttentionMask},
    ops::{
        self, concatenate,
        indexing::{TryIndexMutOp, TryIndexOp},
    },
};

use super::{Activation, Attention, HeadNorms, Layer, Operations, Output, Sight};
use crate::{
    engine::{Logits, ModelError, Row},
    mlx::matrix::slice,
};

/// Positions by which a cache grows.
const GROWTH: i32 = 256;

pub(super) struct PlainOperations {
    stream: Stream,
    attention: Attention,
    /// Positions per radian of each pair, as MLX wants it, for each sight.
    wavelengths: Vec<Array>,
    caches: BTreeMap<u32, Cache>,
    runs: Vec<Run>,
    /// Where each row's line is when runs are laid end to end; none if the
    /// rows already lie so.
    order: Option<Array>,
}

/// The rows of one slot in a pass.
struct Run {
    slot: u32,
    position: i32,
    /// Which rows they are.
    rows: Vec<i32>,
}

#[derive(Default)]
struct Cache {
    /// Positions held.
    length: i32,
    /// Keys and values, `[1, n_kv_heads, capacity, head_dim]`, by layer.
    layers: Vec<(Array, Array)>,
}

impl PlainOperations {
    pub(super) fn new(attention: Attention) -> Self {
        Self {
            stream: Stream::thread_local_or_default(),
            wavelengths: attention.sights.iter().map(wavelengths).collect(),
            attention,
            caches: BTreeMap::new(),
            runs: Vec::new(),
            order: None,
        }
    }

    /// RMS norm of every query head and every key head of `qkv`.
    fn head_norm(&self, qkv: &Array, norms: &HeadNorms, eps: f32) -> Result<Array, Exception> {
        let Attention {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = self.attention;
        let (n_heads, n_kv_heads) = (n_heads as i32, n_kv_heads as i32);
        let heads = qkv.reshape(&[qkv.dim(0), n_heads + 2 * n_kv_heads, head_dim as i32])?;
        let queries = heads.try_index((.., ..n_heads))?;
        let keys = heads.try_index((.., n_heads..n_heads + n_kv_heads))?;
        let values = heads.try_index((.., n_heads + n_kv_heads..))?;
        let queries = rms_norm(&queries, &norms.queries, eps)?;
        let keys = rms_norm(&keys, &norms.keys, eps)?;
        concatenate(&[queries, keys, values], 1)?.reshape(qkv.shape())
    }

    /// `qkv` lines are the query heads, the key heads and the value heads.
    fn attention(&mut self, layer: usize, qkv: &Array) -> Result<Array, Exception> {
        let runs = std::mem::take(&mut self.runs);
        let outputs: Result<Vec<Array>, Exception> = runs
            .iter()
            .map(|run| {
                let lines = Array::from_slice(&run.rows, &[run.rows.len() as i32]);
                self.attend(layer, &qkv.take_axis(&lines, 0)?, run)
            })
            .collect();
        self.runs = runs;
        let outputs = concatenate(&outputs?, 0)?;
        match &self.order {
            Some(order) => outputs.take_axis(order, 0),
            None => Ok(outputs),
        }
    }

    fn attend(&mut self, layer: usize, qkv: &Array, run: &Run) -> Result<Array, Exception> {
        let Attention {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = self.attention;
        let (n_heads, n_kv_heads, head_dim) = (n_heads as i32, n_kv_heads as i32, head_dim as i32);
        let n_rows = run.rows.len() as i32;
        let heads = qkv
            .reshape(&[1, n_rows, n_heads + 2 * n_kv_heads, head_dim])?
            .transpose_axes(&[0, 2, 1, 3])?;
        let wavelengths = &self.wavelengths[self.attention.layers[layer]];
        let turn = |x: Array| fast::rope(&x, head_dim, false, None, 1.0, run.position, wavelengths);
        let queries = turn(heads.try_index((.., ..n_heads))?)?;
        let keys = turn(heads.try_index((.., n_heads..n_heads + n_kv_heads))?)?;
        let values = heads.try_index((.., n_heads + n_kv_heads..))?;
        let cache = self.caches.entry(run.slot).or_default();
        let (keys, values) = cache.append(layer, run.position, &keys, &values)?;
        let sight = self.attention.sight(layer);
        let seen = Seen::new(run.position, n_rows, sight.window);
        let (keys, values) = (
            keys.try_index((.., .., seen.first.., ..))?,
            values.try_index((.., .., seen.first.., ..))?,
        );
        fast::scaled_dot_product_attention(
            &queries,
            &keys,
            &values,
            sight.scale,
            seen.mask(),
            None,
        )?
        .transpose_axes(&[0, 2, 1, 3])?
        .reshape(&[n_rows, n_heads * head_dim])
    }
}

impl Operations for PlainOperations {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn begin(&mut self, rows: &[Row]) -> Result<(), ModelError> {
        let mut by_slot: BTreeMap<u32, Vec<i32>> = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            by_slot.entry(row.slot).or_default().push(index as i32);
        }
        self.runs.clear();
        let mut order = vec![0; rows.len()];
        let mut place = 0;
        for (slot, indices) in by_slot {
            let start = rows[indices[0] as usize].position;
            let cache = self.caches.entry(slot).or_default();
            for (offset, &index) in indices.iter().enumerate() {
                let row = rows[index as usize];
                if row.position != start + offset as u32 || start as i32 > cache.length {
                    return Err(ModelError(format!(
                        "position {} of slot {slot} leaves a gap",
                        row.position
                    )));
                }
                order[index as usize] = place;
                place += 1;
            }
            cache.length = start as i32 + indices.len() as i32;
            self.runs.push(Run {
                slot,
                position: start as i32,
                rows: indices,
            });
        }
        let sorted = order.is_sorted();
        self.order = (!sorted).then(|| Array::from_slice(&order, &[order.len() as i32]));
        Ok(())
    }

    fn layer(&mut self, index: usize, layer: &Layer, x: &Array) -> Result<Array, Exception> {
        let normed_where = |norm: &Option<Array>, output: Array| match norm {
            Some(norm) => rms_norm(&output, norm, layer.norm_eps),
            None => Ok(output),
        };
        let normed = rms_norm(x, &layer.attention_norm, layer.norm_eps)?;
        let mut qkv = layer.qkv.product(&normed)?;
        if let Some(bias) = &layer.qkv_bias {
            qkv = qkv.add(bias)?;
        }
        if let Some(norms) = &layer.head_norms {
            qkv = self.head_norm(&qkv, norms, layer.norm_eps)?;
        }
        let output = layer.output.product(&self.attention(index, &qkv)?)?;
        let x = x.add(normed_where(&layer.attention_output_norm, output)?)?;

        let normed = rms_norm(&x, &layer.mlp_norm, layer.norm_eps)?;
        let gate_up = layer.gate_up.product(&normed)?;
        let output = layer.down.product(&gated(&gate_up, layer.activation)?)?;
        x.add(normed_where(&layer.mlp_output_norm, output)?)
    }

    fn logits(
        &mut self,
        x: &Array,
        wanted: &[usize],
        output: &Output<'_>,
        logits: &mut Logits,
    ) -> Result<(), Exception> {
        logits.clear();
        if wanted.is_empty() {
            return x.eval();
        }
        let wanted: Vec<i32> = wanted.iter().map(|&row| row as i32).collect();
        let lines = x.take_axis(Array::from_slice(&wanted, &[wanted.len() as i32]), 0)?;
        let normed = rms_norm(&lines, output.norm, output.eps)?;
        let product = output.head.product(&normed)?;
        let rows = product.contiguous()?;
        logits.replace(rows.dim(1) as usize, slice(&rows)?);
        Ok(())
    }

    fn bytes_per_position(&self) -> usize {
        self.attention.bytes_per_position()
    }

    fn share(&mut self, from: u32, slot: u32, n_positions: u32) {
        let Some(source) = self.caches.get(&from) else {
            return;
        };
        // Arrays are values: writing to one leaves the other as it is.
        let shared = Cache {
            length: source.length.min(n_positions as i32),
            layers: source.layers.clone(),
        };
        self.caches.insert(slot, shared);
    }

    fn release(&mut self, slot: u32) {
        self.caches.remove(&slot);
    }
}

impl Cache {
    /// Writes `keys` and `values` from `position` on, and returns all up to
    /// their end.
    fn append(
        &mut self,
        layer: usize,
        position: i32,
        keys: &Array,
        values: &Array,
    ) -> Result<(Array, Array), Exception> {
        let end = position + keys.dim(2);
        while self.layers.len() <= layer {
            self.layers
                .push((room(keys, GROWTH)?, room(values, GROWTH)?));
        }
        let (all_keys, all_values) = &mut self.layers[layer];
        for (all, new) in [(&mut *all_keys, keys), (&mut *all_values, values)] {
            if all.dim(2) < end {
                let missing = (end - all.dim(2) + GROWTH - 1) / GROWTH * GROWTH;
                *all = concatenate(&[&*all, &room(new, missing)?], 2)?;
            }
            all.try_index_mut((.., .., position..end, ..), new)?;
        }
        Ok((
            all_keys.try_index((.., .., ..end, ..))?,
            all_values.try_index((.., .., ..end, ..))?,
        ))
    }
}

/// The keys that a run's rows see.
struct Seen {
    /// The first position that any of them sees.
    first: i32,
    /// Which row sees which, `[rows, keys]`, where it is not all up to its own
    /// position.
    windows: Option<Array>,
    n_rows: i32,
}

impl Seen {
    fn new(position: i32, n_rows: i32, window: Option<u32>) -> Self {
        let window = window.map_or(i32::MAX, |window| i32::try_from(window).unwrap_or(i32::MAX));
        let first = (position - window).saturating_add(1).max(0);
        let end = position + n_rows;
        // Otherwise the last row sees all the keys that the first one sees.
        let slides = n_rows > 1 && end - first > window;
        let windows = slides.then(|| {
            let sees = |row: i32, key: i32| key <= row && row - key < window;
            let mask: Vec<bool> = (position..end)
                .flat_map(|row| (first..end).map(move |key| sees(row, key)))
                .collect();
            Array::from_slice(&mask, &[n_rows, end - first])
        });
        Self {
            first,
            windows,
            n_rows,
        }
    }

    fn mask(&self) -> Option<ScaledDotProductAttentionMask<'_>> {
        match &self.windows {
            Some(windows) => Some(ScaledDotProductAttentionMask::Array(windows)),
            None => (self.n_rows > 1).then_some(ScaledDotProductAttentionMask::Causal),
        }
    }
}

fn wavelengths(sight: &Sight) -> Array {
    let frequencies = sight.rope_frequencies.iter();
    let wavelengths: Vec<f32> = frequencies
        .map(|frequency| (1.0 / frequency) as f32)
        .collect();
    Array::from_slice(&wavelengths, &[wavelengths.len() as i32])
}

fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Result<Array, Exception> {
    fast::rms_norm(x, Some(weight), eps)
}

/// `activation(gate) · up` of lines of gate and up.
fn gated(gate_up: &Array, activation: Activation) -> Result<Array, Exception> {
    let width = gate_up.dim(1) / 2;
    let gate = gate_up.try_index((.., ..width))?;
    let up = gate_up.try_index((.., width..))?;
    let activated = match activation {
        Activation::Silu => gate.multiply(ops::sigmoid(&gate)?)?,
        Activation::GeluTanh => gelu_tanh(&gate)?,
    };
    activated.multiply(up)
}

fn gelu_tanh(x: &Array) -> Result<Array, Exception> {
    let slope = Array::from_f32((2.0 / std::f32::consts::PI).sqrt());
    let cubic = x.power(Array::from_f32(3.0))?;
    let inner = x.add(cubic.multiply(Array::from_f32(0.044_715))?)?;
    let tanh = ops::tanh(inner.multiply(slope)?)?;
    let half = x.multiply(Array::from_f32(0.5))?;
    half.multiply(tanh.add(Array::from_f32(1.0))?)
}

/// Zeros for `n_positions` more.
fn room(like: &Array, n_positions: i32) -> Result<Array, Exception> {
    ops::zeros::<f32>(&[1, like.dim(1), n_positions, like.dim(3)])
}
