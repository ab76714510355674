//! The weights of a checkpoint, read one after the other with progress.

use std::collections::HashMap;

use mlx_rs::{
    Array, Dtype,
    io::{GgufError, GgufFile},
    ops,
};

use super::{
    LoadError,
    checkpoint::{Checkpoint, Progress, Quantisation, Source},
};

/// GGUF's quantisations all have groups of this many values.
const GGUF_GROUP_SIZE: usize = 32;

/// Weights that were not taken yet.
pub(super) struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    /// By their names in the files; those of safetensors are still lazy.
    stored: HashMap<String, Array>,
    progress: &'a mut dyn FnMut(Progress),
    done_bytes: u64,
    total_bytes: u64,
}

impl<'a> Weights<'a> {
    pub(super) fn open(
        checkpoint: &'a Checkpoint,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<Self, LoadError> {
        let stored = match &checkpoint.source {
            Source::Gguf(path) => GgufFile::load(path).and_then(|file| file.arrays())?,
            Source::Safetensors(paths) => {
                let mut stored = HashMap::new();
                for path in paths {
                    stored.extend(Array::load_safetensors(path)?);
                }
                stored
            }
        };
        let total_bytes = stored.values().map(|array| array.nbytes() as u64).sum();
        let mut weights = Self {
            checkpoint,
            stored,
            progress,
            done_bytes: 0,
            total_bytes,
        };
        weights.report(0);
        Ok(weights)
    }

    /// The tensor that Hugging Face calls `name`, as f32. The CPU computes in
    /// f32, so quantised weights are unpacked here, with their scales as f32:
    /// in half precision they would move logits by 0.07. A backend whose
    /// matrix products read quantised weights would keep them as they are.
    pub(super) fn take(&mut self, name: &str) -> Result<Array, LoadError> {
        let missing = || LoadError::MissingTensors {
            first: name.to_owned(),
            count: 1,
        };
        let tensor = self.checkpoint.tensors.get(name).ok_or_else(missing)?;
        let stem = tensor
            .stored_name
            .strip_suffix(".weight")
            .unwrap_or(&tensor.stored_name);
        let weight = self
            .stored
            .remove(&format!("{stem}.weight"))
            .or_else(|| self.stored.remove(&tensor.stored_name))
            .ok_or_else(missing)?;
        let mut n_bytes = weight.nbytes();
        let scales = self.stored.remove(&format!("{stem}.scales"));
        let biases = self.stored.remove(&format!("{stem}.biases"));
        let dense = if let (Some(scales), Some(biases)) = (scales, biases) {
            n_bytes += scales.nbytes() + biases.nbytes();
            let Quantisation { group_size, bits } = tensor
                .quantised
                .unwrap_or_else(|| gguf_quantisation(&weight, &tensor.shape));
            ops::dequantize(
                &weight,
                scales.as_dtype(Dtype::Float32)?,
                &biases.as_dtype(Dtype::Float32)?,
                group_size as i32,
                bits as i32,
            )?
        } else {
            weight.as_dtype(Dtype::Float32)?
        };
        dense.eval()?;
        self.report(n_bytes as u64);
        Ok(dense)
    }

    fn report(&mut self, n_bytes: u64) {
        self.done_bytes += n_bytes;
        (self.progress)(Progress {
            task: "loading weights",
            done_bytes: self.done_bytes,
            total_bytes: self.total_bytes,
        });
    }
}

fn gguf_quantisation(packed: &Array, shape: &[usize]) -> Quantisation {
    let columns = shape.last().copied().unwrap_or(1).max(1);
    Quantisation {
        group_size: GGUF_GROUP_SIZE,
        bits: packed.dim(-1) as usize * 32 / columns,
    }
}

impl From<GgufError> for LoadError {
    fn from(error: GgufError) -> Self {
        match error {
            GgufError::Exception(exception) => exception.into(),
            other => Self::Mlx(other.to_string()),
        }
    }
}
