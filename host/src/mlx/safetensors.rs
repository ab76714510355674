//! The header of a safetensors file, checked before MLX reads its tensors.
//! Format: <https://github.com/huggingface/safetensors#format>.

use std::{fs::File, io::Read, ops::Range, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::LoadError;

/// Largest header the format allows, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const SUPPORTED: &str = "F32, F16, BF16, and U32 for MLX's quantised weights";

/// A tensor as it lies in the file.
#[derive(Debug, Deserialize)]
pub(super) struct Stored {
    /// Type of an element, such as `F32`.
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    data_offsets: [u64; 2],
    /// Where it lies, in bytes from the beginning of the file.
    #[serde(skip)]
    pub(super) extent: Range<u64>,
}

/// The file's tensors by name.
///
/// # Errors
/// When the file is not a whole safetensors file or has tensors of a type that
/// is not supported.
pub(super) fn read_header(path: &Path) -> Result<Vec<(String, Stored)>, LoadError> {
    let read = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let malformed = |reason: String| LoadError::Malformed {
        path: path.to_owned(),
        format: "safetensors",
        reason,
    };
    let mut file = File::open(path).map_err(read)?;
    let found = file.metadata().map_err(read)?.len();
    if found < 8 {
        return Err(malformed(format!("it has {found} bytes")));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(read)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > MAX_HEADER_BYTES {
        return Err(malformed(format!(
            "its header would have {header_bytes} bytes"
        )));
    }
    let data = 8 + header_bytes;
    if data > found {
        return Err(LoadError::Truncated {
            path: path.to_owned(),
            found,
            needed: data,
        });
    }
    let mut header = vec![0; header_bytes as usize];
    file.read_exact(&mut header).map_err(read)?;
    let entries: Map<String, Value> = serde_json::from_slice(&header)
        .map_err(|error| malformed(format!("its header is not JSON: {error}")))?;

    let mut tensors = Vec::with_capacity(entries.len());
    let mut needed = data;
    for (name, value) in entries {
        if name == "__metadata__" {
            continue;
        }
        let mut stored: Stored = serde_json::from_value(value)
            .map_err(|error| malformed(format!("tensor `{name}`: {error}")))?;
        let n_bytes = stored.n_bytes(&name)?;
        let [from, to] = stored.data_offsets;
        if n_bytes.and_then(|n_bytes| from.checked_add(n_bytes)) != Some(to) {
            return Err(malformed(format!(
                "tensor `{name}` has shape {:?} but lies at bytes {from} to {to}",
                stored.shape
            )));
        }
        stored.extent = data.saturating_add(from)..data.saturating_add(to);
        needed = needed.max(stored.extent.end);
        tensors.push((name, stored));
    }
    if needed > found {
        return Err(LoadError::Truncated {
            path: path.to_owned(),
            found,
            needed,
        });
    }
    Ok(tensors)
}

impl Stored {
    /// Size of the data in bytes; none if it is beyond counting.
    fn n_bytes(&self, name: &str) -> Result<Option<u64>, LoadError> {
        let width = match self.dtype.as_str() {
            "F32" | "U32" => 4,
            "F16" | "BF16" => 2,
            other => {
                return Err(LoadError::UnsupportedEncoding {
                    tensor: name.to_owned(),
                    found: other.to_owned(),
                    supported: SUPPORTED.to_owned(),
                });
            }
        };
        // MLX counts a shape's lengths in i32.
        let fits = self
            .shape
            .iter()
            .all(|&length| i32::try_from(length).is_ok());
        let count = self
            .shape
            .iter()
            .try_fold(1_u64, |n, &length| n.checked_mul(length as u64));
        Ok(count
            .filter(|_| fits)
            .and_then(|count| count.checked_mul(width)))
    }
}
