//! The tensors of a GGUF file, read one by one.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use mlx_rs::Array;

use super::{
    LoadError,
    checkpoint::Quantisation,
    gguf_blocks::{Affine, Values},
    gguf_header::Place,
    weights::{Stored, Weight},
};

/// The one size of groups that is common to MLX and GGUF.
const GROUP_SIZE: usize = 32;

pub(super) struct GgufTensors<'a> {
    path: &'a Path,
    file: File,
    places: &'a BTreeMap<String, Place>,
}

impl<'a> GgufTensors<'a> {
    pub(super) fn open(
        path: &'a Path,
        places: &'a BTreeMap<String, Place>,
    ) -> Result<Self, LoadError> {
        let file = File::open(path).map_err(|source| LoadError::Read {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { path, file, places })
    }

    /// The tensor of this name in the file, and its bytes. Matrices whose
    /// groups MLX has too stay quantised.
    pub(super) fn read(&mut self, name: &str) -> Result<(Weight, u64), LoadError> {
        let missing = || LoadError::MissingTensors {
            first: name.to_owned(),
            count: 1,
        };
        let place = self.places.get(name).ok_or_else(missing)?;
        let blocks = self.bytes(place)?;
        let shape: Vec<i32> = place.shape.iter().map(|&length| length as i32).collect();
        let weight = match place.encoding.read(&blocks) {
            Values::Floats(values) => Weight::Dense(Array::from_slice(&values, &shape)),
            Values::Affine(affine) => match *shape {
                [rows, columns] if affine.group_size == GROUP_SIZE => {
                    Weight::Quantised(quantised(&affine, rows, columns))
                }
                _ => Weight::Dense(Array::from_slice(&affine.values(), &shape)),
            },
        };
        Ok((weight, place.n_bytes))
    }

    /// The header was checked against the file's length.
    fn bytes(&mut self, place: &Place) -> Result<Vec<u8>, LoadError> {
        let mut bytes = vec![0; place.n_bytes as usize];
        let file = &mut self.file;
        file.seek(SeekFrom::Start(place.offset))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|source| LoadError::Read {
                path: self.path.to_owned(),
                source,
            })?;
        Ok(bytes)
    }
}

/// As MLX stores it.
fn quantised(affine: &Affine, rows: i32, columns: i32) -> Stored {
    let packed: Vec<u8> = if affine.n_bits == 4 {
        let pairs = affine.q.chunks_exact(2);
        pairs.map(|pair| pair[0] | pair[1] << 4).collect()
    } else {
        affine.q.clone()
    };
    let words: Vec<u32> = packed
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    let groups = [rows, columns / GROUP_SIZE as i32];
    Stored {
        parts: [
            Array::from_slice(&words, &[rows, columns * affine.n_bits as i32 / 32]),
            Array::from_slice(&affine.scales, &groups),
            Array::from_slice(&affine.biases, &groups),
        ],
        quantisation: Quantisation {
            group_size: GROUP_SIZE,
            bits: affine.n_bits,
        },
    }
}
