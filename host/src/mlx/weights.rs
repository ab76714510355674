//! The weights of a checkpoint, read one after the other with progress.

use std::collections::HashMap;

use mlx_rs::{
    Array, Dtype,
    error::Exception,
    ops::{self, concatenate},
};

use super::{
    LoadError,
    checkpoint::{Checkpoint, Progress, Quantisation, Source, Tensor},
    gguf_tensors::GgufTensors,
};

/// Weights that were not taken yet.
pub(super) struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    files: Files<'a>,
    progress: &'a mut dyn FnMut(Progress),
    done_bytes: u64,
    total_bytes: u64,
}

enum Files<'a> {
    Gguf(GgufTensors<'a>),
    /// By their names in the files, and still lazy.
    Safetensors(HashMap<String, Array>),
}

impl<'a> Weights<'a> {
    pub(super) fn open(
        checkpoint: &'a Checkpoint,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<Self, LoadError> {
        let (files, total_bytes) = match &checkpoint.source {
            Source::Gguf(path, places) => {
                let total_bytes = places.values().map(|place| place.n_bytes).sum();
                (Files::Gguf(GgufTensors::open(path, places)?), total_bytes)
            }
            Source::Safetensors(paths) => {
                let mut stored = HashMap::new();
                for path in paths {
                    stored.extend(Array::load_safetensors(path)?);
                }
                let total_bytes = stored.values().map(|array| array.nbytes() as u64).sum();
                (Files::Safetensors(stored), total_bytes)
            }
        };
        let mut weights = Self {
            checkpoint,
            files,
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
        let tensor = self.checkpoint.tensors.get(name);
        let tensor = tensor.ok_or_else(|| LoadError::MissingTensors {
            first: name.to_owned(),
            count: 1,
        })?;
        let (weight, n_bytes) = match &mut self.files {
            Files::Gguf(tensors) => tensors.read(&tensor.stored_name)?,
            Files::Safetensors(stored) => take_lazy(stored, tensor)?,
        };
        self.report(n_bytes);
        Ok(weight)
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

/// A tensor of safetensors files, now read, and its bytes.
fn take_lazy(
    stored: &mut HashMap<String, Array>,
    tensor: &Tensor,
) -> Result<(Weight, u64), LoadError> {
    let name = &tensor.stored_name;
    let mut part = |name: String| {
        stored.remove(&name).ok_or(LoadError::MissingTensors {
            first: name,
            count: 1,
        })
    };
    let (weight, n_bytes) = match tensor.quantised {
        None => {
            let array = part(name.clone())?;
            let n_bytes = array.nbytes();
            (Weight::Dense(array.as_dtype(Dtype::Float32)?), n_bytes)
        }
        Some(quantisation) => {
            let words = part(format!("{name}.weight"))?;
            let scales = part(format!("{name}.scales"))?;
            let biases = part(format!("{name}.biases"))?;
            let n_bytes = words.nbytes() + scales.nbytes() + biases.nbytes();
            let f32s = |array: Array| array.as_dtype(Dtype::Float32);
            let parts = [words, f32s(scales)?, f32s(biases)?];
            let quantised = Stored {
                parts,
                quantisation,
            };
            (Weight::Quantised(quantised), n_bytes)
        }
    };
    weight.eval()?;
    Ok((weight, n_bytes as u64))
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
