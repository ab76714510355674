//! `qwen3`: Qwen 3: a Llama whose heads of queries and keys go through a norm.
//! Reference: Hugging Face's `modeling_qwen3.py`.

use super::decoder_config::{DecoderConfig, Parts, check_activation, refuse_windows};
use crate::mlx::{Checkpoint, LoadError, settings::Settings};

pub(super) fn config(checkpoint: &Checkpoint) -> Result<DecoderConfig, LoadError> {
    let settings = Settings(&checkpoint.config);
    check_activation(settings, "hidden_act", "silu")?;
    refuse_windows(settings)?;
    Ok(DecoderConfig {
        parts: Parts {
            head_norms: true,
            ..Parts::default()
        },
        ..DecoderConfig::read(checkpoint, Some(128))?.with_rope(settings, None)?
    })
}
