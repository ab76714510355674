//! `llama`: Llama 2 and 3, SmolLM2 and those built like them.
//! Reference: Hugging Face's `modeling_llama.py`.

use mlx_rs::{Array, Stream, error::Exception, with_stream};

use crate::{
    engine::{Model, ModelError, Row},
    mlx::{
        Backend, Checkpoint, LoadError, Progress,
        error::message,
        matrix::Matrix,
        operations::{self, Attention, Operations, Output},
        rope,
        settings::Settings,
        weights::{Weight, Weights},
    },
};

/// Far above any model's, and little to allocate for.
const MAX_HEAD_DIM: usize = 4096;
const ROPE_FACTORS: &str = "rope_freqs.weight";

struct Config {
    hidden: usize,
    intermediate: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    context_length: usize,
    norm_eps: f32,
    tied: bool,
    rope_frequencies: Vec<f64>,
}

impl Config {
    fn read(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let settings = Settings(&checkpoint.config);
        for key in ["attention_bias", "mlp_bias"] {
            settings.refuse_flag(key)?;
        }
        if let Some(activation) = settings.text("hidden_act").filter(|name| *name != "silu") {
            return Err(Settings::wrong(
                "hidden_act",
                &activation,
                "only silu is supported",
            ));
        }
        if let Some(experts) = settings
            .get("num_local_experts")
            .filter(|n| n.as_u64() != Some(0))
        {
            return Err(Settings::wrong(
                "num_local_experts",
                &experts,
                "experts are not supported",
            ));
        }
        let hidden = settings.count("hidden_size")?;
        let n_heads = settings.count("num_attention_heads")?;
        let n_kv_heads = settings
            .optional_count("num_key_value_heads")?
            .unwrap_or(n_heads);
        let head_dim = settings
            .optional_count("head_dim")?
            .unwrap_or(hidden / n_heads);
        if !n_heads.is_multiple_of(n_kv_heads) {
            let expected = format!("it must divide the {n_heads} attention heads");
            return Err(Settings::wrong(
                "num_key_value_heads",
                &n_kv_heads,
                &expected,
            ));
        }
        if !head_dim.is_multiple_of(2) || !(2..=MAX_HEAD_DIM).contains(&head_dim) {
            let expected = format!("it must be even and at most {MAX_HEAD_DIM}");
            return Err(Settings::wrong("head_dim", &head_dim, &expected));
        }
        let n_layers = settings.count("num_hidden_layers")?;
        let n_tensors = checkpoint.tensors.len();
        if n_layers > n_tensors {
            let expected = format!("the model has {n_tensors} tensors");
            return Err(Settings::wrong("num_hidden_layers", &n_layers, &expected));
        }
        Ok(Self {
            hidden,
            intermediate: settings.count("intermediate_size")?,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            vocabulary: settings.count("vocab_size")?,
            context_length: settings.count("max_position_embeddings")?,
            norm_eps: settings.optional_number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            tied: settings.flag("tie_word_embeddings")?,
            rope_frequencies: rope::frequencies(settings, head_dim)?,
        })
    }

    fn attention(&self) -> Attention {
        Attention {
            n_layers: self.n_layers,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            rope_frequencies: self.rope_frequencies.clone(),
        }
    }
}

/// The tensors of a checkpoint with this configuration.
pub(super) fn tensors(checkpoint: &Checkpoint) -> Result<Vec<(String, Vec<usize>)>, LoadError> {
    let config = Config::read(checkpoint)?;
    let Config {
        hidden,
        intermediate,
        vocabulary,
        ..
    } = config;
    let queries = config.n_heads * config.head_dim;
    let keys = config.n_kv_heads * config.head_dim;
    let mut tensors = vec![(
        "model.embed_tokens.weight".to_owned(),
        vec![vocabulary, hidden],
    )];
    for layer in 0..config.n_layers {
        for (part, shape) in [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![queries, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, queries]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![intermediate, hidden]),
            ("mlp.up_proj", vec![intermediate, hidden]),
            ("mlp.down_proj", vec![hidden, intermediate]),
        ] {
            tensors.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
    if !config.tied {
        tensors.push(("lm_head.weight".to_owned(), vec![vocabulary, hidden]));
    }
    // GGUF files of Llama 3 keep the stretching of rope as a tensor.
    if checkpoint.tensors.contains_key(ROPE_FACTORS) {
        tensors.push((ROPE_FACTORS.to_owned(), vec![config.head_dim / 2]));
    }
    Ok(tensors)
}

/// Products with the same input are one product.
struct Layer {
    attention_norm: Array,
    qkv: Matrix,
    output: Matrix,
    mlp_norm: Array,
    gate_up: Matrix,
    down: Matrix,
}

struct Llama {
    config: Config,
    /// `[vocabulary, hidden]`
    embedding: Matrix,
    layers: Vec<Layer>,
    norm: Array,
    /// `[vocabulary, hidden]`; none if it is the embedding.
    head: Option<Matrix>,
    operations: Box<dyn Operations>,
    logits: Vec<f32>,
}

pub(super) fn load(
    checkpoint: &Checkpoint,
    backend: Backend,
    progress: &mut dyn FnMut(Progress),
) -> Result<Box<dyn Model>, LoadError> {
    let mut config = Config::read(checkpoint)?;
    let mut weights = Weights::open(checkpoint, progress)?;
    if checkpoint.tensors.contains_key(ROPE_FACTORS) {
        stretch(&mut config.rope_frequencies, &weights.take(ROPE_FACTORS)?)?;
    }
    let operations = operations::new(backend, config.attention())
        .map_err(|error| LoadError::Mlx(error.to_string()))?;
    let stream = operations.stream().clone();
    with_stream(&stream, || {
        let interleaved = checkpoint.has_interleaved_rope();
        let layers = (0..config.n_layers)
            .map(|index| Layer::load(&config, &mut weights, index, interleaved, backend))
            .collect::<Result<_, _>>()?;
        let mut matrix = |name: &str| -> Result<Matrix, LoadError> {
            Ok(Matrix::new(&weights.take_stored(name)?, backend)?)
        };
        let embedding = matrix("model.embed_tokens.weight")?;
        let untied = (!config.tied).then(|| matrix("lm_head.weight"));
        let head = untied.transpose()?;
        let norm = weights.take("model.norm.weight")?;
        let logits = Vec::new();
        let model = Llama {
            config,
            embedding,
            layers,
            norm,
            head,
            operations,
            logits,
        };
        Ok(Box::new(model) as Box<dyn Model>)
    })
}

impl Layer {
    fn load(
        config: &Config,
        weights: &mut Weights<'_>,
        index: usize,
        interleaved: bool,
        backend: Backend,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("model.layers.{index}.{part}.weight");
        let mut take = |part: &str| weights.take_stored(&name(part));
        let (mut queries, mut keys) = (take("self_attn.q_proj")?, take("self_attn.k_proj")?);
        if interleaved {
            let head_dim = config.head_dim;
            queries = queries.reordered(|lines| half_split(lines, config.n_heads, head_dim))?;
            keys = keys.reordered(|lines| half_split(lines, config.n_kv_heads, head_dim))?;
        }
        let qkv = Weight::joined(&[queries, keys, take("self_attn.v_proj")?])?;
        let gate_up = Weight::joined(&[take("mlp.gate_proj")?, take("mlp.up_proj")?])?;
        Ok(Self {
            qkv: Matrix::new(&qkv, backend)?,
            output: Matrix::new(&take("self_attn.o_proj")?, backend)?,
            gate_up: Matrix::new(&gate_up, backend)?,
            down: Matrix::new(&take("mlp.down_proj")?, backend)?,
            attention_norm: weights.take(&name("input_layernorm"))?,
            mlp_norm: weights.take(&name("post_attention_layernorm"))?,
        })
    }
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

impl Llama {
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

    fn compute(&mut self, rows: &[Row], stream: &Stream) -> Result<(), Exception> {
        let eps = self.config.norm_eps;
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let mut x = self.embedding.lines(&tokens)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = self.operations.rms_norm(&x, &layer.attention_norm, eps)?;
            let qkv = layer.qkv.product(&normed, stream)?;
            let attended = self.operations.attention(index, &qkv)?;
            x = x.add(layer.output.product(&attended, stream)?)?;
            let normed = self.operations.rms_norm(&x, &layer.mlp_norm, eps)?;
            let gate_up = layer.gate_up.product(&normed, stream)?;
            let activated = self.operations.swiglu(&gate_up, self.config.intermediate)?;
            x = x.add(layer.down.product(&activated, stream)?)?;
        }
        let wanted: Vec<usize> = (0..rows.len())
            .filter(|&index| rows[index].wants_logits)
            .collect();
        let output = Output {
            norm: &self.norm,
            eps,
            head: self.head.as_ref().unwrap_or(&self.embedding),
        };
        self.operations
            .logits(&x, &wanted, &output, &mut self.logits)
    }
}

impl Model for Llama {
    fn vocabulary_size(&self) -> usize {
        self.config.vocabulary
    }

    fn forward(&mut self, rows: &[Row]) -> Result<(), ModelError> {
        if rows.is_empty() {
            self.logits.clear();
            return Ok(());
        }
        self.check(rows)?;
        self.operations.begin(rows)?;
        let stream = self.operations.stream().clone();
        with_stream(&stream, || self.compute(rows, &stream))
            .map_err(|exception| ModelError(format!("MLX: {}", message(&exception))))
    }

    fn logits(&mut self) -> &mut [f32] {
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
