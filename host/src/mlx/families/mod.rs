//! The families of models, each in a file named after its `model_type`.

mod llama;

use serde_json::{Map, Value};

use super::{Backend, Checkpoint, LoadError, Progress, settings::Settings};
use crate::engine::Model;

/// A tensor's name and shape.
type Needed = (String, Vec<usize>);
type LoadResult = Result<Box<dyn Model>, LoadError>;

/// What a family needs of a checkpoint and makes of it.
struct Family {
    model_type: &'static str,
    /// Names and shapes of the tensors that the configuration implies; fails
    /// if it asks for what the family does not compute.
    tensors: fn(&Checkpoint) -> Result<Vec<Needed>, LoadError>,
    load: fn(&Checkpoint, Backend, &mut dyn FnMut(Progress)) -> LoadResult,
}

const FAMILIES: [Family; 1] = [Family {
    model_type: "llama",
    tensors: llama::tensors,
    load: llama::load,
}];

/// Reads a checkpoint's weights, on the thread that will use the model.
///
/// # Errors
/// When a weight cannot be read.
pub fn load(
    checkpoint: &Checkpoint,
    backend: Backend,
    progress: &mut dyn FnMut(Progress),
) -> Result<Box<dyn Model>, LoadError> {
    (find(&checkpoint.model_type)?.load)(checkpoint, backend, progress)
}

pub(super) fn known(model_type: &str) -> Result<(), LoadError> {
    find(model_type).map(|_| ())
}

fn find(model_type: &str) -> Result<&'static Family, LoadError> {
    FAMILIES
        .iter()
        .find(|family| family.model_type == model_type)
        .ok_or_else(|| {
            let supported: Vec<_> = FAMILIES.iter().map(|family| family.model_type).collect();
            LoadError::UnsupportedFamily {
                found: model_type.to_owned(),
                supported: supported.join(", "),
            }
        })
}

/// Checks that the checkpoint has the tensors its family needs, in the right
/// shapes, and no others.
pub(super) fn check(checkpoint: &Checkpoint) -> Result<(), LoadError> {
    let needed = (find(&checkpoint.model_type)?.tensors)(checkpoint)?;
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
