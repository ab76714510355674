//! Where tensors lie in a file.

use std::{ops::Range, path::Path};

use super::{LoadError, gguf_header::Header, safetensors};

/// Where each tensor of a GGUF or safetensors file lies, in bytes from its
/// beginning: within the file, for its header has been checked.
///
/// # Errors
/// When the header is not that of a whole file with tensors of types that are
/// supported.
pub fn tensor_extents(path: &Path) -> Result<Vec<Range<u64>>, LoadError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gguf") => {
            let tensors = Header::read(path)?.tensors;
            Ok(tensors
                .iter()
                .map(|place| place.offset..place.offset + place.n_bytes)
                .collect())
        }
        Some("safetensors") => {
            let tensors = safetensors::read_header(path)?;
            Ok(tensors
                .into_iter()
                .map(|(_, stored)| stored.extent)
                .collect())
        }
        _ => Err(LoadError::NotAModel(path.to_owned())),
    }
}
