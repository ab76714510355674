//! A model's files: what they say about it, before any weight is read.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{LoadError, folder, gguf, gguf_header::Place};

/// A model's files, read and checked but for the weights themselves.
#[derive(Debug)]
pub struct Checkpoint {
    /// What to call the model: the name it gives itself, or its folder's.
    pub name: String,
    /// The family, as Hugging Face names it, such as `llama`.
    pub model_type: String,
    /// Width of a logits row.
    pub vocabulary_size: u32,
    /// Longest sequence the model was made for, in tokens.
    pub context_length: u32,
    /// Every id by which the model ends a sequence, ascending.
    pub end_of_sequence: Vec<u32>,
    /// What text needs to make a tokenizer.
    pub tokenizer: TokenizerData,
    /// The Jinja source of the chat template.
    pub chat_template: Option<String>,
    /// The one for chats with tools, where it is another.
    pub tool_template: Option<String>,
    /// The text of the token that begins a sequence, for the chat template.
    pub bos_token: Option<String>,
    /// The text of the token that ends one, for the chat template.
    pub eos_token: Option<String>,
    /// The configuration under Hugging Face's names, for GGUF files too.
    pub(super) config: Map<String, Value>,
    /// The tensors by Hugging Face's names, for GGUF files too.
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) source: Source,
}

/// A tokenizer as the model's files describe it.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizerData {
    /// The content of `tokenizer.json`.
    Json(Vec<u8>),
    /// The keys `tokenizer.ggml.*` of a GGUF file.
    Gguf(GgufTokenizer),
}

/// The keys `tokenizer.ggml.*` of a GGUF file; see
/// <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer>.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GgufTokenizer {
    /// `model`, such as `gpt2`.
    pub model: String,
    /// `pre`: how text is cut before merging. Empty where the key is absent.
    pub pre: String,
    /// `tokens`, by id.
    pub tokens: Vec<String>,
    /// `merges`, best first.
    pub merges: Vec<String>,
    /// `scores`, by id.
    pub scores: Vec<f32>,
    /// `token_type`, by id.
    pub token_types: Vec<i32>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `add_bos_token`; none where the key is absent.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`; none where the key is absent.
    pub add_space_prefix: Option<bool>,
}

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, as a short phrase such as `loading weights`.
    pub task: &'static str,
    /// Bytes done of this task.
    pub done_bytes: u64,
    /// Bytes of this task.
    pub total_bytes: u64,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    /// Lengths of the tensor as the model uses it, outermost first.
    pub(super) shape: Vec<usize>,
    /// Its name in its file, without the `.weight` at the end if it is a
    /// quantised one with scales and biases beside it.
    pub(super) stored_name: String,
    pub(super) quantised: Option<Quantisation>,
}

/// MLX's affine quantisation: each `group_size` values of a row share a scale
/// and a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quantisation {
    pub(super) group_size: usize,
    pub(super) bits: usize,
}

/// The files that hold the weights.
#[derive(Debug)]
pub(super) enum Source {
    /// With the places of its tensors by their names in the file.
    Gguf(PathBuf, BTreeMap<String, Place>),
    Safetensors(Vec<PathBuf>),
}

impl Checkpoint {
    /// Reads a GGUF file, or a folder as Hugging Face and MLX write them.
    /// Takes milliseconds: the weights stay where they are.
    ///
    /// # Errors
    /// When the files are not whole, or hold a model that cannot be run.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let metadata = std::fs::metadata(path).map_err(|source| LoadError::Read {
            path: path.to_owned(),
            source,
        })?;
        let checkpoint = if metadata.is_dir() {
            folder::open(path)?
        } else if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            gguf::open(path)?
        } else {
            return Err(LoadError::NotAModel(path.to_owned()));
        };
        super::families::check(&checkpoint)?;
        checkpoint.check_ends()?;
        Ok(checkpoint)
    }

    /// Whether queries and keys are stored for the interleaved form of rope,
    /// in which a pair to rotate stands side by side.
    pub(super) fn has_interleaved_rope(&self) -> bool {
        matches!(self.source, Source::Gguf(..)) && self.model_type == "llama"
    }

    /// Whether norms are stored as what they multiply by, also where the family
    /// stores something else.
    pub(super) fn has_whole_norms(&self) -> bool {
        matches!(self.source, Source::Gguf(..))
    }

    fn check_ends(&self) -> Result<(), LoadError> {
        match self
            .end_of_sequence
            .iter()
            .find(|&&id| id >= self.vocabulary_size)
        {
            None => Ok(()),
            Some(id) => Err(LoadError::Setting {
                setting: "eos_token_id".to_owned(),
                found: id.to_string(),
                expected: format!("the vocabulary has {} tokens", self.vocabulary_size),
            }),
        }
    }
}
