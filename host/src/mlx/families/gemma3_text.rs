//! `gemma3_text`: Gemma 3 without its eyes: heads of queries and keys go through
//! a norm, and so does what attention and MLP give; most layers see a window of
//! the sequence, with a rope of their own.
//! Reference: mlx-lm's `gemma3_text.py`, Hugging Face's `modeling_gemma3.py`.

use super::decoder_config::{DecoderConfig, Parts, check_activation, sight};
use crate::mlx::{Checkpoint, LoadError, operations::Activation, rope::Rope, settings::Settings};

/// One layer of so many sees everything, where the configuration does not say.
const PATTERN: usize = 6;
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

pub(super) fn config(checkpoint: &Checkpoint) -> Result<DecoderConfig, LoadError> {
    let settings = Settings(&checkpoint.config);
    for key in ["hidden_activation", "hidden_act"] {
        check_activation(settings, key, "gelu_pytorch_tanh")?;
    }
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(cap) = settings.get(key) {
            return Err(Settings::wrong(key, cap, "it is not supported"));
        }
    }
    settings.refuse_flag("use_bidirectional_attention")?;
    let mut config = DecoderConfig::read(checkpoint, Some(256))?;
    let head_dim = config.attention.head_dim;
    let divisor = settings
        .optional_number("query_pre_attn_scalar")?
        .unwrap_or(256.0);
    let [full, sliding] = ropes(settings, head_dim)?;
    let window = settings.count("sliding_window")? as u32;
    config.attention.sights = vec![
        sight(full, divisor, None),
        sight(sliding, divisor, Some(window)),
    ];
    config.attention.layers = layers(settings, config.attention.layers.len())?;
    Ok(DecoderConfig {
        activation: Activation::GeluTanh,
        embedding_scale: Some(embedding_scale(config.hidden)),
        parts: Parts {
            head_norms: true,
            output_norms: true,
            ..Parts::default()
        },
        norm_offset: if checkpoint.has_whole_norms() {
            0.0
        } else {
            1.0
        },
        ..config
    })
}

/// For each layer whether it sees everything, 0, or a window, 1.
fn layers(settings: Settings<'_>, n_layers: usize) -> Result<Vec<usize>, LoadError> {
    let Some(kinds) = settings.texts("layer_types")? else {
        let pattern = match settings.optional_count("sliding_window_pattern")? {
            Some(pattern) => pattern,
            None => settings
                .optional_count("_sliding_window_pattern")?
                .unwrap_or(PATTERN),
        };
        let sees_all = |layer: usize| (layer + 1).is_multiple_of(pattern);
        return Ok((0..n_layers)
            .map(|layer| usize::from(!sees_all(layer)))
            .collect());
    };
    if kinds.len() != n_layers {
        let expected = format!("the model has {n_layers} layers");
        return Err(Settings::wrong("layer_types", &kinds.len(), &expected));
    }
    kinds
        .into_iter()
        .map(|kind| match kind {
            FULL => Ok(0),
            SLIDING => Ok(1),
            other => Err(Settings::wrong(
                "layer_types",
                &other,
                "only full_attention and sliding_attention are supported",
            )),
        })
        .collect()
}

/// The rope of layers that see everything, and of those that see a window.
fn ropes(settings: Settings<'_>, head_dim: usize) -> Result<[Rope; 2], LoadError> {
    // Newer configurations have a table for each.
    if let Some(parameters) = settings.table("rope_parameters")?
        && let (Some(full), Some(sliding)) = (parameters.table(FULL)?, parameters.table(SLIDING)?)
    {
        let rope = |table: Settings<'_>| Rope::scaled(table.number("rope_theta")?, table, head_dim);
        return Ok([rope(full)?, rope(sliding)?]);
    }
    let local = settings.optional_number("rope_local_base_freq")?;
    Ok([
        Rope::read(settings, Some(1e6), head_dim)?,
        Rope::plain(local.unwrap_or(10_000.0), head_dim),
    ])
}

/// √hidden in the precision the models were trained with, bfloat16.
fn embedding_scale(hidden: usize) -> f32 {
    let bits = (hidden as f32).sqrt().to_bits();
    let to_nearest_even = 0x7FFF + (bits >> 16 & 1);
    f32::from_bits(bits.wrapping_add(to_nearest_even) & 0xFFFF_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// √640 = 25.298: bfloat16 has steps of 1/8 there. √1152 = 33.941, with
    /// steps of 1/4: 34. √4096 = 64 exactly.
    #[test]
    fn the_embedding_is_scaled_in_half_precision() {
        assert_eq!(
            [640, 1152, 4096].map(|hidden| embedding_scale(hidden).to_bits()),
            [25.25_f32, 34.0, 64.0].map(f32::to_bits)
        );
    }
}
