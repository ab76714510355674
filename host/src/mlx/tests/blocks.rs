//! Tensors of GGUF files in every encoding, against what the Python package
//! `gguf` reads; see `tests/parity/make_gguf_blocks.py`.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;
use tempfile::tempdir;

use crate::mlx::{
    gguf_blocks::{Encoding, Values},
    gguf_header::Place,
    gguf_tensors::GgufTensors,
    weights::Weight,
};

#[derive(Deserialize)]
struct Case {
    blocks: Vec<u8>,
    values: Vec<f32>,
}

/// Two blocks or more of each encoding.
fn cases() -> Vec<(Encoding, Case)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/gguf_blocks.json");
    let mut cases: BTreeMap<String, Case> =
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let encodings = (0..64).filter_map(|id| Encoding::from_id(id).ok());
    let known: Vec<_> = encodings
        .filter_map(|encoding| Some((encoding, cases.remove(encoding.name())?)))
        .collect();
    assert!(cases.is_empty(), "{:?}", cases.keys());
    assert_eq!(known.len(), 13);
    known
}

/// The reference rounds twice.
fn assert_near(found: &[f32], case: &Case, encoding: Encoding) {
    assert_eq!(found.len(), case.values.len(), "{encoding:?}");
    for (found, expected) in found.iter().zip(&case.values) {
        let near = (found - expected).abs() <= 1e-6 * (1.0 + expected.abs());
        assert!(near, "{encoding:?}: {found} for {expected}");
    }
}

#[test]
fn blocks_hold_what_the_reference_reads_in_them() {
    for (encoding, case) in cases() {
        let found = match encoding.read(&case.blocks) {
            Values::Floats(values) => values,
            Values::Affine(affine) => {
                assert!(affine.q.iter().all(|&q| u32::from(q) < 1 << affine.n_bits));
                affine.values()
            }
        };
        assert_near(&found, &case, encoding);
    }
}

/// `value = d · q`, of `block_q8_K`, which the package does not read.
#[test]
fn q8_k_has_one_scale_for_all() {
    let q: Vec<u8> = (0..=255).collect();
    let block = [&0.5_f32.to_le_bytes(), q.as_slice(), &[0; 32]].concat();
    let Values::Affine(affine) = Encoding::Q8K.read(&block) else {
        panic!("not affine");
    };
    let values = affine.values();
    let expected = [0.0, 0.5, 63.5, -64.0, -0.5];
    for (index, expected) in [0, 1, 127, 128, 255].into_iter().zip(expected) {
        assert!((values[index] - expected).abs() < 1e-9, "{index}");
    }
    assert_eq!(values.len(), 256);
}

/// All of them one after the other in a file, as matrices of two lines.
#[test]
fn tensors_are_what_their_blocks_hold() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let (mut content, mut places) = (vec![0; 7], BTreeMap::new());
    let cases = cases();
    for (encoding, case) in &cases {
        let name = format!("{encoding:?}");
        let place = Place {
            name: name.clone(),
            shape: vec![2, case.values.len() / 2],
            encoding: *encoding,
            offset: content.len() as u64,
            n_bytes: case.blocks.len() as u64,
        };
        content.extend(&case.blocks);
        places.insert(name, place);
    }
    fs::write(&path, content).unwrap();
    let mut tensors = GgufTensors::open(&path, &places).unwrap();
    let mut n_quantised = 0;
    for (encoding, case) in &cases {
        let (weight, n_bytes) = tensors.read(&format!("{encoding:?}")).unwrap();
        assert_eq!(n_bytes, case.blocks.len() as u64);
        n_quantised += usize::from(matches!(weight, Weight::Quantised(_)));
        let dense = weight.dense().unwrap();
        assert_eq!(dense.shape(), [2, case.values.len() as i32 / 2]);
        assert_near(dense.as_slice::<f32>(), case, *encoding);
    }
    assert_eq!(n_quantised, 7, "Q4_0 to Q8_0, Q4_K and Q5_K");
    // The file was cut after it was opened.
    fs::write(&path, [0; 100]).unwrap();
    let error = tensors.read("Q6K").err().unwrap().to_string();
    assert!(error.contains("could not read"), "{error}");
}
