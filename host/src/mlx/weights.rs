//! The weights of a checkpoint, read one after the other with progress.

use std::collections::HashMap;

use mlx_rs::{
    Array, Dtype,
    error::Exception,
    io::{GgufError, GgufFile},
    ops::{self, concatenate},
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

    /// The tensor that Hugging Face calls `name`, as f32.
    pub(super) fn take(&mut self, name: &str) -> Result<Array, LoadError> {
        Ok(self.take_stored(name)?.dense()?)
    }

    /// The tensor that Hugging Face calls `name`, as it is stored.
    pub(super) fn take_stored(&mut self, name: &str) -> Result<Weight, LoadError> {
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
        let taken = if let (Some(scales), Some(biases)) = (scales, biases) {
            n_bytes += scales.nbytes() + biases.nbytes();
            let quantisation = tensor
                .quantised
                .unwrap_or_else(|| gguf_quantisation(&weight, &tensor.shape));
            let f32s = |array: Array| array.as_dtype(Dtype::Float32);
            Weight::Quantised(Stored {
                parts: [weight, f32s(scales)?, f32s(biases)?],
                quantisation,
            })
        } else {
            Weight::Dense(weight.as_dtype(Dtype::Float32)?)
        };
        taken.eval()?;
        self.report(n_bytes as u64);
        Ok(taken)
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

/// A tensor as it is stored, but for f32.
pub(super) enum Weight {
    Dense(Array),
    Quantised(Stored),
}

/// A quantised matrix as MLX stores it.
pub(super) struct Stored {
    /// The packed weights; scales and biases in f32: in half precision they
    /// would move logits by 0.07.
    pub(super) parts: [Array; 3],
    pub(super) quantisation: Quantisation,
}

impl Weight {
    /// All values in f32.
    pub(super) fn dense(&self) -> Result<Array, Exception> {
        let dense = match self {
            Self::Dense(array) => array.clone(),
            Self::Quantised(Stored {
                parts: [words, scales, biases],
                quantisation: Quantisation { group_size, bits },
            }) => ops::dequantize(words, scales, biases, *group_size as i32, *bits as i32)?,
        };
        dense.eval()?;
        Ok(dense)
    }

    /// Reorders the lines of a matrix, each of which stays as it is.
    pub(super) fn reordered(
        self,
        reorder: impl Fn(&Array) -> Result<Array, Exception>,
    ) -> Result<Self, Exception> {
        Ok(match self {
            Self::Dense(array) => Self::Dense(reorder(&array)?),
            Self::Quantised(Stored {
                parts: [words, scales, biases],
                quantisation,
            }) => Self::Quantised(Stored {
                parts: [reorder(&words)?, reorder(&scales)?, reorder(&biases)?],
                quantisation,
            }),
        })
    }

    /// One matrix of the lines of several; in f32 if they are not quantised
    /// alike.
    pub(super) fn joined(weights: &[Self]) -> Result<Self, Exception> {
        if let Some(joined) = Stored::joined(weights)? {
            return Ok(Self::Quantised(joined));
        }
        let dense: Vec<Array> = weights.iter().map(Self::dense).collect::<Result<_, _>>()?;
        Ok(Self::Dense(concatenate(&dense, 0)?))
    }

    fn eval(&self) -> Result<(), Exception> {
        match self {
            Self::Dense(array) => array.eval(),
            Self::Quantised(stored) => stored.parts.iter().try_for_each(Array::eval),
        }
    }
}

impl Stored {
    fn joined(weights: &[Weight]) -> Result<Option<Self>, Exception> {
        let stored = weights.iter().map(|weight| match weight {
            Weight::Quantised(stored) => Some(stored),
            Weight::Dense(_) => None,
        });
        let Some(stored) = stored.collect::<Option<Vec<&Self>>>() else {
            return Ok(None);
        };
        let Some(quantisation) = stored.first().map(|first| first.quantisation) else {
            return Ok(None);
        };
        if stored
            .iter()
            .any(|other| other.quantisation != quantisation)
        {
            return Ok(None);
        }
        let part = |index: usize| {
            let parts: Vec<&Array> = stored.iter().map(|stored| &stored.parts[index]).collect();
            concatenate(&parts, 0)
        };
        Ok(Some(Self {
            parts: [part(0)?, part(1)?, part(2)?],
            quantisation,
        }))
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
