//! What a layer computes.

mod host;
mod plain;

use mlx_rs::{Array, Stream, error::Exception};

use super::{Backend, matrix::Matrix};
use crate::engine::{Logits, ModelError, Row};

/// The attention of a model.
#[derive(Debug, Clone)]
pub(super) struct Attention {
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    /// The ways in which its layers attend.
    pub(super) sights: Vec<Sight>,
    /// Which of these each layer has.
    pub(super) layers: Vec<usize>,
}

/// How a layer sees the positions before it.
#[derive(Debug, Clone)]
pub(super) struct Sight {
    /// Radians per position of each pair of a head.
    pub(super) rope_frequencies: Vec<f64>,
    /// What query times key is multiplied by.
    pub(super) scale: f32,
    /// How many positions a row sees, itself included; all if `None`.
    pub(super) window: Option<u32>,
}

impl Attention {
    /// Bytes of one position's keys and values, in f32.
    fn bytes_per_position(&self) -> usize {
        2 * self.layers.len() * self.n_kv_heads * self.head_dim * size_of::<f32>()
    }

    fn sight(&self, layer: usize) -> &Sight {
        &self.sights[self.layers[layer]]
    }
}

/// What a gate goes through before it multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    /// `x / (1 + e^-x)`
    Silu,
    /// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`
    GeluTanh,
}

/// The weights of norms of single heads, `[head_dim]` each.
pub(super) struct HeadNorms {
    pub(super) queries: Array,
    pub(super) keys: Array,
}

/// The weights of a layer. Products with the same input are one product.
pub(super) struct Layer {
    pub(super) norm_eps: f32,
    pub(super) attention_norm: Array,
    pub(super) qkv: Matrix,
    pub(super) qkv_bias: Option<Array>,
    pub(super) head_norms: Option<HeadNorms>,
    pub(super) output: Matrix,
    pub(super) attention_output_norm: Option<Array>,
    pub(super) mlp_norm: Array,
    pub(super) gate_up: Matrix,
    pub(super) activation: Activation,
    pub(super) down: Matrix,
    pub(super) mlp_output_norm: Option<Array>,
}

/// The layers of a model over rows of any sequences, and the keys and values they
/// remember. Arrays are f32 and have one line per row.
pub(super) trait Operations {
    /// The stream to compute on.
    fn stream(&self) -> &Stream;

    /// Begins a forward pass over `rows`.
    ///
    /// # Errors
    /// When the rows of a slot leave a gap.
    fn begin(&mut self, rows: &[Row]) -> Result<(), ModelError>;

    /// What the layer, the model's `index`th, makes of the lines of `x`.
    ///
    /// - norm: `x / sqrt(mean(x²) + eps) · weight`, line by line;
    /// - queries, keys and values, by one product, with a bias and a norm of every
    ///   query head and every key head where the layer has them;
    /// - attention: turns queries and keys, remembers keys and values, and attends to
    ///   all of the row's sequence up to its position, or to as much as the layer sees;
    /// - its output, normed where the layer does that, is added to `x`;
    /// - the same with norm, gate and up by one product, `activation(gate) · up`, down.
    fn layer(&mut self, index: usize, layer: &Layer, x: &Array) -> Result<Array, Exception>;

    /// The logits of the lines `wanted` of `x`, in place of what is in
    /// `logits`. Returns when the pass is computed.
    fn logits(
        &mut self,
        x: &Array,
        wanted: &[usize],
        output: &Output<'_>,
        logits: &mut Logits,
    ) -> Result<(), Exception>;

    /// Bytes that one position's keys and values take.
    fn bytes_per_position(&self) -> usize;

    /// Lets `slot` begin with the first `n_positions` of `from`.
    fn share(&mut self, from: u32, slot: u32, n_positions: u32);

    /// Forgets a slot's keys and values.
    fn release(&mut self, slot: u32);
}

/// What turns the last layer's result into logits.
pub(super) struct Output<'a> {
    pub(super) norm: &'a Array,
    pub(super) eps: f32,
    /// `[vocabulary, hidden]`.
    pub(super) head: &'a Matrix,
}

pub(super) fn new(
    backend: Backend,
    attention: Attention,
) -> Result<Box<dyn Operations>, ModelError> {
    Ok(match backend {
        Backend::Cpu => Box::new(host::HostOperations::new(attention)?),
        Backend::Mlx => Box::new(plain::PlainOperations::new(attention)),
    })
}
