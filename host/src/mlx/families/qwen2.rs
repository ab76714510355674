//! `qwen2`: Qwen 2 and 2.5: a Llama whose queries, keys and values have a bias.
//! Reference: Hugging Face's `modeling_qwen2.py`.

use super::decoder_config::{DecoderConfig, Parts, check_activation, refuse_windows};
use crate::mlx::{Checkpoint, LoadError, settings::Settings};

pub(super) fn config(checkpoint: &Checkpoint) -> Result<DecoderConfig, LoadError> {
    let settings = Settings(&checkpoint.config);
    check_activation(settings, "hidden_act", "silu")?;
    refuse_windows(settings)?;
    Ok(DecoderConfig {
        parts: Parts {
            qkv_bias: true,
            ..Parts::default()
        },
        ..DecoderConfig::read(checkpoint, None)?.with_rope(settings, None)?
    })
}
