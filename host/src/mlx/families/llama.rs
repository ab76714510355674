//! `llama`: Llama 2 and 3, SmolLM2 and those built like them.
//! Reference: Hugging Face's `modeling_llama.py`.

use super::decoder_config::{DecoderConfig, check_activation};
use crate::mlx::{Checkpoint, LoadError, settings::Settings};

pub(super) fn config(checkpoint: &Checkpoint) -> Result<DecoderConfig, LoadError> {
    let settings = Settings(&checkpoint.config);
    check_activation(settings, "hidden_act", "silu")?;
    DecoderConfig::read(checkpoint, None)?.with_rope(settings, Some(10_000.0))
}
