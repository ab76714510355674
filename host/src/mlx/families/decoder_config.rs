//! What a family's configuration comes to.

use super::super::{
    Checkpoint, LoadError,
    operations::{Activation, Attention, Sight},
    rope::Rope,
    settings::Settings,
};

/// Far above any model's, and little to allocate for.
const MAX_HEAD_DIM: usize = 4096;
/// GGUF files of Llama 3 keep the stretching of rope as a tensor.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// A transformer whose layers are attention and a gated MLP, each behind an RMS
/// norm, and what parts it has beyond that.
pub(super) struct DecoderConfig {
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) vocabulary: usize,
    pub(super) context_length: usize,
    pub(super) norm_eps: f32,
    /// Whether the embedding is the head too.
    pub(super) tied: bool,
    pub(super) activation: Activation,
    pub(super) attention: Attention,
    /// What embeddings are multiplied by.
    pub(super) embedding_scale: Option<f32>,
    pub(super) parts: Parts,
    /// What a norm multiplies by, less its weight in the file.
    pub(super) norm_offset: f32,
}

/// What layers have beside attention, a gated MLP and a norm before each.
#[derive(Clone, Copy, Default)]
pub(super) struct Parts {
    /// A bias of queries, keys and values.
    pub(super) qkv_bias: bool,
    /// Norms of the heads of queries and keys.
    pub(super) head_norms: bool,
    /// Norms of what attention and MLP give.
    pub(super) output_norms: bool,
}

impl DecoderConfig {
    /// The part that all families configure alike, with heads of
    /// `default_head_dim`, or of an equal share of `hidden_size`, where the
    /// configuration does not say. How layers see is still to be added.
    pub(super) fn read(
        checkpoint: &Checkpoint,
        default_head_dim: Option<usize>,
    ) -> Result<Self, LoadError> {
        let settings = Settings(&checkpoint.config);
        for key in ["attention_bias", "mlp_bias", "rope_traditional"] {
            settings.refuse_flag(key)?;
        }
        refuse_experts(settings)?;
        let hidden = settings.count("hidden_size")?;
        let n_heads = settings.count("num_attention_heads")?;
        let n_kv_heads = settings
            .optional_count("num_key_value_heads")?
            .unwrap_or(n_heads);
        let head_dim = settings
            .optional_count("head_dim")?
            .or(default_head_dim)
            .unwrap_or(hidden / n_heads);
        if !n_heads.is_multiple_of(n_kv_heads) {
            let expected = format!("it must divide the {n_heads} attention heads");
            return Err(Settings::wrong(
                "num_key_value_heads",
                &n_kv_heads,
                &expected,
            ));
        }
        if !head_dim.is_multiple_of(8) || !(8..=MAX_HEAD_DIM).contains(&head_dim) {
            let expected = format!("it must be a multiple of 8 and at most {MAX_HEAD_DIM}");
            return Err(Settings::wrong("head_dim", &head_dim, &expected));
        }
        let n_layers = settings.count("num_hidden_layers")?;
        let n_tensors = checkpoint.tensors.len();
        if n_layers > n_tensors {
            let expected = format!("the model has {n_tensors} tensors");
            return Err(Settings::wrong("num_hidden_layers", &n_layers, &expected));
        }
        let has_head = checkpoint.tensors.contains_key("lm_head.weight");
        let tied = match settings.get("tie_word_embeddings") {
            Some(_) => settings.flag("tie_word_embeddings")?,
            None => !has_head,
        };
        Ok(Self {
            hidden,
            intermediate: settings.count("intermediate_size")?,
            vocabulary: settings.count("vocab_size")?,
            context_length: settings.count("max_position_embeddings")?,
            norm_eps: settings.optional_number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            tied,
            activation: Activation::Silu,
            attention: Attention {
                n_heads,
                n_kv_heads,
                head_dim,
                sights: Vec::new(),
                layers: vec![0; n_layers],
            },
            embedding_scale: None,
            parts: Parts::default(),
            norm_offset: 0.0,
        })
    }

    /// All layers see everything, with the rope that the configuration tells.
    pub(super) fn with_rope(
        mut self,
        settings: Settings<'_>,
        default_base: Option<f64>,
    ) -> Result<Self, LoadError> {
        let head_dim = self.attention.head_dim;
        let rope = Rope::read(settings, default_base, head_dim)?;
        self.attention.sights = vec![sight(rope, head_dim as f64, None)];
        Ok(self)
    }

    /// Names and shapes of the tensors that a checkpoint of this configuration
    /// has.
    pub(super) fn tensors(&self, checkpoint: &Checkpoint) -> Vec<(String, Vec<usize>)> {
        let (hidden, intermediate) = (self.hidden, self.intermediate);
        let head_dim = self.attention.head_dim;
        let queries = self.attention.n_heads * head_dim;
        let keys = self.attention.n_kv_heads * head_dim;
        let mut parts = vec![
            ("input_layernorm.weight", vec![hidden]),
            ("self_attn.q_proj.weight", vec![queries, hidden]),
            ("self_attn.k_proj.weight", vec![keys, hidden]),
            ("self_attn.v_proj.weight", vec![keys, hidden]),
            ("self_attn.o_proj.weight", vec![hidden, queries]),
            ("post_attention_layernorm.weight", vec![hidden]),
            ("mlp.gate_proj.weight", vec![intermediate, hidden]),
            ("mlp.up_proj.weight", vec![intermediate, hidden]),
            ("mlp.down_proj.weight", vec![hidden, intermediate]),
        ];
        if self.parts.qkv_bias {
            parts.push(("self_attn.q_proj.bias", vec![queries]));
            parts.push(("self_attn.k_proj.bias", vec![keys]));
            parts.push(("self_attn.v_proj.bias", vec![keys]));
        }
        if self.parts.head_norms {
            parts.push(("self_attn.q_norm.weight", vec![head_dim]));
            parts.push(("self_attn.k_norm.weight", vec![head_dim]));
        }
        if self.parts.output_norms {
            parts.push(("pre_feedforward_layernorm.weight", vec![hidden]));
            parts.push(("post_feedforward_layernorm.weight", vec![hidden]));
        }
        let layers = 0..self.attention.layers.len();
        let mut tensors: Vec<_> = layers
            .flat_map(|layer| {
                let named = |(part, shape): &(&str, Vec<usize>)| {
                    (format!("model.layers.{layer}.{part}"), shape.clone())
                };
                parts.iter().map(named).collect::<Vec<_>>()
            })
            .collect();
        let matrix = vec![self.vocabulary, hidden];
        tensors.push(("model.embed_tokens.weight".to_owned(), matrix.clone()));
        tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
        if !self.tied {
            tensors.push(("lm_head.weight".to_owned(), matrix));
        }
        if self.has_rope_factors(checkpoint) {
            tensors.push((ROPE_FACTORS.to_owned(), vec![head_dim / 2]));
        }
        tensors
    }

    /// Whether a tensor stretches the rope of all layers.
    pub(super) fn has_rope_factors(&self, checkpoint: &Checkpoint) -> bool {
        self.attention.sights.len() == 1 && checkpoint.tensors.contains_key(ROPE_FACTORS)
    }
}

/// Attention with query and key divided by `√divisor` together.
pub(super) fn sight(rope: Rope, divisor: f64, window: Option<u32>) -> Sight {
    Sight {
        scale: (rope.magnitude * rope.magnitude / divisor.sqrt()) as f32,
        rope_frequencies: rope.frequencies,
        window,
    }
}

/// Refuses another activation than the family's.
pub(super) fn check_activation(
    settings: Settings<'_>,
    key: &str,
    expected: &str,
) -> Result<(), LoadError> {
    match settings.text(key) {
        Some(found) if found != expected => {
            let expected = format!("only {expected} is supported");
            Err(Settings::wrong(key, &found, &expected))
        }
        _ => Ok(()),
    }
}

/// Refuses windows where no model of the family is known to have them.
pub(super) fn refuse_windows(settings: Settings<'_>) -> Result<(), LoadError> {
    settings.refuse_flag("use_sliding_window")?;
    let kinds = settings.texts("layer_types")?.unwrap_or_default();
    match kinds.iter().find(|kind| **kind != "full_attention") {
        None => Ok(()),
        Some(kind) => Err(Settings::wrong(
            "layer_types",
            kind,
            "only full_attention is supported",
        )),
    }
}

fn refuse_experts(settings: Settings<'_>) -> Result<(), LoadError> {
    let experts = settings.get("num_local_experts");
    match experts.filter(|n| n.as_u64() != Some(0)) {
        None => Ok(()),
        Some(experts) => Err(Settings::wrong(
            "num_local_experts",
            experts,
            "experts are not supported",
        )),
    }
}
