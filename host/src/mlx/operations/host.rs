//! A layer's operations on the CPU: kernels of `sluice-kernels` that MLX runs
//! in its stream.

use std::sync::{Arc, Mutex};

use mlx_host_op::host_op;
use mlx_rs::{Array, Stream, error::Exception, with_stream};
use sluice_kernels::{
    attention::{Kernel, KvCache, Place, Shape},
    ops,
};

use super::{Attention, Operations, Output};
use crate::{
    engine::{ModelError, Row},
    mlx::{error::message, matrix::slice},
};

pub(super) struct HostOperations {
    stream: Stream,
    attention: Attention,
    /// Shared with the operations of a pass that MLX has not run yet.
    cache: Arc<Mutex<KvCache>>,
    angles: Arc<Angles>,
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
            n_layers: attention.n_layers,
            n_heads: attention.n_heads,
            n_kv_heads: attention.n_kv_heads,
            head_dim: attention.head_dim,
        };
        let cache = KvCache::new(shape).map_err(|error| ModelError(error.to_string()))?;
        Ok(Self {
            stream: Stream::cpu(),
            attention,
            cache: Arc::new(Mutex::new(cache)),
            angles: Arc::default(),
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
        // Nobody else holds them between passes, so this copies nothing.
        let Angles { cos, sin } = Arc::make_mut(&mut self.angles);
        ops::rope_tables(&self.positions, &self.attention.rope_frequencies, cos, sin);
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

    fn swiglu(&self, gate_up: &Array, width: usize) -> Result<Array, Exception> {
        let shape = [gate_up.dim(0), width as i32];
        host_op(&shape, &[gate_up], &self.stream, move |inputs, output| {
            ops::swiglu(inputs[0], width, output);
        })
    }

    fn attention(&mut self, layer: usize, qkv: &Array) -> Result<Array, Exception> {
        let shape = [
            qkv.dim(0),
            (self.attention.n_heads * self.attention.head_dim) as i32,
        ];
        let kernel = Kernel {
            scale: self.attention.scale(),
            window: None,
        };
        let (cache, angles) = (Arc::clone(&self.cache), Arc::clone(&self.angles));
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
        logits: &mut Vec<f32>,
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
        output.head.product_into(&self.normed, logits)
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
