//! The families of models, each in a file named after its `model_type`: what
//! its configuration means. [`decoder`] computes them all.

mod decoder;
mod decoder_config;
mod gemma3_text;
mod llama;
mod qwen2;
mod qwen3;

use serde_json::{Map, Value};

use self::decoder_config::DecoderConfig;
use super::{Backend, Checkpoint, LoadError, Progress, settings::Settings};
use crate::engine::Model;

/// How a family is called and read.
struct Family {
    model_type: &'static str,
    /// Its `general.architecture` in GGUF files.
    architecture: &'static str,
    /// What the configuration asks for; fails if it is something that the
    /// family does not compute.
    config: fn(&Checkpoint) -> Result<DecoderConfig, LoadError>,
}

const FAMILIES: [Family; 4] = [
    Family {
        model_type: "llama",
        architecture: "llama",
        config: llama::config,
    },
    Family {
        model_type: "qwen2",
        architecture: "qwen2",
        config: qwen2::config,
    },
    Family {
        model_type: "qwen3",
        architecture: "qwen3",
        config: qwen3::config,
    },
    Family {
        model_type: "gemma3_text",
        architecture: "gemma3",
        config: gemma3_text::config,
    },
];

/// Reads a checkpoint's weights, on the thread that will use the model.
///
/// # Errors
/// When a weight cannot be read.
pub fn load(
    checkpoint: &Checkpoint,
    backend: Backend,
    progress: &mut dyn FnMut(Progress),
) -> Result<Box<dyn Model>, LoadError> {
    let config = (find(&checkpoint.model_type)?.config)(checkpoint)?;
    decoder::load(config, checkpoint, backend, progress)
}

pub(super) fn known(model_type: &str) -> Result<(), LoadError> {
    find(model_type).map(|_| ())
}

fn find(model_type: &str) -> Result<&'static Family, LoadError> {
    FAMILIES
        .iter()
        .find(|family| family.model_type == model_type)
        .ok_or_else(|| unsupported(model_type, |family| family.model_type))
}

/// The `model_type` of a GGUF file's architecture.
pub(super) fn of_architecture(architecture: &str) -> Result<&'static str, LoadError> {
    FAMILIES
        .iter()
        .find(|family| family.architecture == architecture)
        .map(|family| family.model_type)
        .ok_or_else(|| unsupported(architecture, |family| family.architecture))
}

fn unsupported(found: &str, name: fn(&Family) -> &'static str) -> LoadError {
    let supported: Vec<_> = FAMILIES.iter().map(name).collect();
    LoadError::UnsupportedFamily {
        found: found.to_owned(),
        supported: supported.join(", "),
    }
}

/// Checks that the checkpoint has the tensors its family needs, in the right
/// shapes, and no others.
pub(super) fn check(checkpoint: &Checkpoint) -> Result<(), LoadError> {
    let config = (find(&checkpoint.model_type)?.config)(checkpoint)?;
    let needed = config.tensors(checkpoint);
    let missing: Vec<_> = needed
        .iter()
        .filter(|(name, _)| !checkpoint.tensors.contains_key(name))
        .collect();
    if let Some((first, _)) = missing.first() {
        return Err(LoadError::MissingTensors {
            first: first.clone(),
            count: missing.len(),
        });
    }
    for (name, expected) in &needed {
        let found = &checkpoint.tensors[name].shape;
        if found != expected {
            return Err(LoadError::WrongShape {
                tensor: name.clone(),
                found: found.clone(),
                expected: expected.clone(),
            });
        }
    }
    // Some exporters write a tied head out once more.
    let tied = !needed.iter().any(|(name, _)| name == "lm_head.weight");
    let unused: Vec<_> = checkpoint
        .tensors
        .keys()
        .filter(|name| !needed.iter().any(|(needed, _)| needed == *name))
        .filter(|name| !(tied && *name == "lm_head.weight"))
        .collect();
    match unused.first() {
        None => Ok(()),
        Some(first) => Err(LoadError::UnusedTensors {
            first: (*first).clone(),
            count: unused.len(),
        }),
    }
}

/// A count of the configuration that every family has.
pub(super) fn count(config: &Map<String, Value>, key: &str) -> Result<u32, LoadError> {
    Settings(config).count(key).map(|count| count as u32)
}
