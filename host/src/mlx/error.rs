//! Why a model could not be loaded, one sentence each.

use std::{io, path::PathBuf};

use mlx_rs::error::{Exception, IoError};

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or folder cannot be read.
    #[error("could not read {}: {source}", path.display())]
    Read {
        /// What was read.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path names nothing that could be a model.
    #[error("{} is no model: expected a .gguf file, or a folder with config.json and .safetensors files", .0.display())]
    NotAModel(PathBuf),
    /// A file does not have the form its name promises.
    #[error("{} is not a valid {format} file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should have been.
        format: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A file ends before its content does.
    #[error("{} is cut short: it has {found} bytes and its content needs {needed}; fetch it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        found: u64,
        /// The length its header promises, in bytes.
        needed: u64,
    },
    /// A model of a family that is not implemented.
    #[error("model type `{found}` is not supported; supported: {supported}")]
    UnsupportedFamily {
        /// The model's `model_type`, or GGUF's `general.architecture`.
        found: String,
        /// The supported ones.
        supported: String,
    },
    /// A setting of the model that its family does not implement.
    #[error("`{setting}` is {found} in the model's configuration; {expected}")]
    Setting {
        /// The configuration's key.
        setting: String,
        /// Its value.
        found: String,
        /// What would be accepted.
        expected: String,
    },
    /// A tensor stored in a way that cannot be read.
    #[error("tensor `{tensor}` is stored as {found}; supported: {supported}")]
    UnsupportedEncoding {
        /// The tensor's name in its file.
        tensor: String,
        /// How it is stored.
        found: String,
        /// What would be accepted.
        supported: String,
    },
    /// Tensors that the family needs are not there.
    #[error("{count} of the model's tensors are missing, the first is `{first}`")]
    MissingTensors {
        /// The first missing one.
        first: String,
        /// How many are missing.
        count: usize,
    },
    /// Tensors are there that the family has no use for, so that its result
    /// would not be the model's.
    #[error("the model has {count} tensors that its family does not use, the first is `{first}`")]
    UnusedTensors {
        /// The first of them.
        first: String,
        /// How many there are.
        count: usize,
    },
    /// A tensor is not as large as the configuration says.
    #[error("tensor `{tensor}` has shape {found:?}, the configuration needs {expected:?}")]
    WrongShape {
        /// The tensor's name.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape the configuration implies.
        expected: Vec<usize>,
    },
    /// MLX could not do its part.
    #[error("MLX: {0}")]
    Mlx(String),
    /// A model could not be fetched.
    #[error("could not fetch {model}: {reason}")]
    Fetch {
        /// What the user calls it.
        model: String,
        /// What went wrong.
        reason: String,
    },
}

impl From<Exception> for LoadError {
    fn from(exception: Exception) -> Self {
        Self::Mlx(message(&exception))
    }
}

impl From<IoError> for LoadError {
    fn from(error: IoError) -> Self {
        match error {
            IoError::Exception(exception) => exception.into(),
            other => Self::Mlx(other.to_string()),
        }
    }
}

/// What an exception says, without the place in MLX's sources that mlx-c adds.
pub(super) fn message(exception: &Exception) -> String {
    let what = exception.what();
    let end = what.rfind(" at mlx-c/").unwrap_or(what.len());
    what[..end].to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use mlx_rs::Array;

    use super::*;

    #[test]
    fn messages_name_no_source_files() {
        let three = Array::from_slice(&[1.0_f32; 3], &[3]);
        let two = Array::from_slice(&[1.0_f32; 2], &[2]);
        let exception = three.add(&two).unwrap_err();
        assert!(
            exception.what().contains(" at mlx-c/"),
            "{}",
            exception.what()
        );
        assert!(
            !message(&exception).contains(".cpp"),
            "{}",
            message(&exception)
        );
        assert!(
            message(&exception).contains("(3)"),
            "{}",
            message(&exception)
        );
    }
}
