//! The transformer that all families are, each with parts of its own.

use mlx_rs::{Array, error::Exception, ops::concatenate, with_stream};

use sluice_kernels::pages;

use super::decoder_config::{DecoderConfig, ROPE_FACTORS};
use crate::{
    engine::{Logits, Model, ModelError, Row},
    mlx::{
        Backend, Checkpoint, LoadError, Progress,
        error::message,
        matrix::Matrix,
        operations::{self, HeadNorms, Layer, Operations, Output},
        weights::{Weight, Weights},
    },
};

struct Decoder {
    config: DecoderConfig,
    /// `[vocabulary, hidden]`
    embedding: Matrix,
    embedding_scale: Option<Array>,
    layers: Vec<Layer>,
    norm: Array,
    /// `[vocabulary, hidden]`; none if it is the embedding.
    head: Option<Matrix>,
    operations: Box<dyn Operations>,
    logits: Logits,
}

/// Reads the weights of a checkpoint that [`DecoderConfig::tensors`] describes.
pub(super) fn load(
    mut config: DecoderConfig,
    checkpoint: &Checkpoint,
    backend: Backend,
    progress: &mut dyn FnMut(Progress),
) -> Result<Box<dyn Model>, LoadError> {
    let mut weights = Weights::open(checkpoint, progress)?;
    if config.has_rope_factors(checkpoint) {
        let factors = weights.take(ROPE_FACTORS)?;
        for sight in &mut config.attention.sights {
            stretch(&mut sight.rope_frequencies, &factors)?;
        }
    }
    let operations = operations::new(backend, config.attention.clone())
        .map_err(|error| LoadError::Mlx(error.to_string()))?;
    let stream = operations.stream().clone();
    with_stream(&stream, || {
        let interleaved = checkpoint.has_interleaved_rope();
        let layers = (0..config.attention.layers.len())
            .map(|index| Layer::load(&config, &mut weights, index, interleaved, backend))
            .collect::<Result<_, _>>()?;
        let mut matrix = |name: &str| -> Result<Matrix, LoadError> {
            Ok(Matrix::new(&weights.take_stored(name)?, backend)?)
        };
        let embedding = matrix("model.embed_tokens.weight")?;
        let untied = (!config.tied).then(|| matrix("lm_head.weight"));
        let head = untied.transpose()?;
        let norm = norm(&mut weights, "model.norm.weight", &config)?;
        let model = Decoder {
            embedding_scale: config.embedding_scale.map(Array::from_f32),
            config,
            embedding,
            layers,
            norm,
            head,
            operations,
            logits: Logits::default(),
        };
        if backend == Backend::Cpu {
            let memory: Vec<_> = model
                .matrices()
                .map(Matrix::memory)
                .collect::<Result<_, _>>()?;
            pages::make_large(memory.into_iter().flatten());
        }
        Ok(Box::new(model) as Box<dyn Model>)
    })
}

impl Layer {
    fn load(
        config: &DecoderConfig,
        weights: &mut Weights<'_>,
        index: usize,
        interleaved: bool,
        backend: Backend,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let mut take = |part: &str| weights.take_stored(&name(&format!("{part}.weight")));
        let (mut queries, mut keys) = (take("self_attn.q_proj")?, take("self_attn.k_proj")?);
        if interleaved {
            let attention = &config.attention;
            let head_dim = attention.head_dim;
            queries = queries.reordered(|lines| half_split(lines, attention.n_heads, head_dim))?;
            keys = keys.reordered(|lines| half_split(lines, attention.n_kv_heads, head_dim))?;
        }
        let qkv = Weight::joined(&[queries, keys, take("self_attn.v_proj")?])?;
        let gate_up = Weight::joined(&[take("mlp.gate_proj")?, take("mlp.up_proj")?])?;
        let (output, down) = (take("self_attn.o_proj")?, take("mlp.down_proj")?);

        let mut norm = |part: &str| norm(weights, &name(&format!("{part}.weight")), config);
        let attention_norm = norm("input_layernorm")?;
        let after_attention = norm("post_attention_layernorm")?;
        let (attention_output_norm, mlp_norm, mlp_output_norm) = if config.parts.output_norms {
            (
                Some(after_attention),
                norm("pre_feedforward_layernorm")?,
                Some(norm("post_feedforward_layernorm")?),
            )
        } else {
            (None, after_attention, None)
        };
        let head_norms = config.parts.head_norms.then(|| {
            Ok::<_, LoadError>(HeadNorms {
                queries: norm("self_attn.q_norm")?,
                keys: norm("self_attn.k_norm")?,
            })
        });
        let head_norms = head_norms.transpose()?;
        let qkv_bias = config.parts.qkv_bias.then(|| {
            let mut bias = |part: &str| weights.take(&name(&format!("self_attn.{part}.bias")));
            let parts = [bias("q_proj")?, bias("k_proj")?, bias("v_proj")?];
            Ok::<_, LoadError>(concatenate(&parts, 0)?)
        });
        Ok(Self {
            norm_eps: config.norm_eps,
            attention_norm,
            qkv: Matrix::new(&qkv, backend)?,
            qkv_bias: qkv_bias.transpose()?,
            head_norms,
            output: Matrix::new(&output, backend)?,
            attention_output_norm,
            mlp_norm,
            gate_up: Matrix::new(&gate_up, backend)?,
            activation: config.activation,
            down: Matrix::new(&down, backend)?,
            mlp_output_norm,
        })
    }
}

/// What a norm multiplies by.
fn norm(weights: &mut Weights<'_>, name: &str, config: &DecoderConfig) -> Result<Array, LoadError> {
    let weight = weights.take(name)?;
    let weight = weight.add(Array::from_f32(config.norm_offset))?;
    weight.eval()?;
    Ok(weight)
}

/// Reorders the lines of each head from pairs side by side, (x0, y0, x1, y1,
/// …), to halves, (x0, x1, …, y0, y1, …).
fn half_split(weight: &Array, n_heads: usize, head_dim: usize) -> Result<Array, Exception> {
    let columns = weight.dim(1);
    weight
        .reshape(&[n_heads as i32, head_dim as i32 / 2, 2, columns])?
        .transpose_axes(&[0, 2, 1, 3])?
        .reshape(&[(n_heads * head_dim) as i32, columns])
}

fn stretch(frequencies: &mut [f64], factors: &Array) -> Result<(), LoadError> {
    let factors = factors
        .try_as_slice::<f32>()
        .map_err(|error| LoadError::Mlx(error.to_string()))?;
    for (frequency, factor) in frequencies.iter_mut().zip(factors) {
        *frequency /= f64::from(*factor);
    }
    Ok(())
}

impl Decoder {
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let of_layers = self.layers.iter().flat_map(|layer| {
            let Layer {
                qkv,
                output,
                gate_up,
                down,
                ..
            } = layer;
            [qkv, output, gate_up, down]
        });
        [&self.embedding]
            .into_iter()
            .chain(&self.head)
            .chain(of_layers)
    }

    /// An id that is none of the vocabulary's would make MLX read elsewhere.
    fn check(&self, rows: &[Row]) -> Result<(), ModelError> {
        for row in rows {
            if row.token as usize >= self.config.vocabulary {
                return Err(ModelError(format!(
                    "token {} is not in the vocabulary",
                    row.token
                )));
            }
            if row.position as usize >= self.config.context_length {
                return Err(ModelError(format!(
                    "position {} is beyond the context",
                    row.position
                )));
            }
        }
        Ok(())
    }

    fn compute(&mut self, rows: &[Row]) -> Result<(), Exception> {
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let mut x = self.embedding.lines(&tokens)?;
        if let Some(scale) = &self.embedding_scale {
            x = x.multiply(scale)?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            x = self.operations.layer(index, layer, &x)?;
        }
        let wanted: Vec<usize> = (0..rows.len())
            .filter(|&index| rows[index].wants_logits)
            .collect();
        let output = Output {
            norm: &self.norm,
            eps: self.config.norm_eps,
            head: self.head.as_ref().unwrap_or(&self.embedding),
        };
        self.operations
            .logits(&x, &wanted, &output, &mut self.logits)
    }

    fn pass(&mut self, rows: &[Row]) -> Result<(), ModelError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.check(rows)?;
        self.operations.begin(rows)?;
        let stream = self.operations.stream().clone();
        with_stream(&stream, || self.compute(rows))
            .map_err(|exception| ModelError(format!("MLX: {}", message(&exception))))
    }
}

impl Model for Decoder {
    fn vocabulary_size(&self) -> usize {
        self.config.vocabulary
    }

    fn forward(&mut self, rows: &[Row]) -> Result<(), ModelError> {
        let computed = self.pass(rows);
        if rows.is_empty() || computed.is_err() {
            self.logits.clear();
        }
        computed
    }

    fn logits(&mut self) -> &mut Logits {
        &mut self.logits
    }

    fn bytes_per_position(&self) -> usize {
        self.operations.bytes_per_position()
    }

    fn share(&mut self, from: u32, slot: u32, n_positions: u32) {
        self.operations.share(from, slot, n_positions);
    }

    fn release(&mut self, slot: u32) {
        self.operations.release(slot);
    }
}
