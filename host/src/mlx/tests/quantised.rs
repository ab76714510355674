//! The ways a folder can store the same weights.

use std::fs;

use mlx_rs::{Array, Dtype, ops};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use super::{
    small::{self, Tensors},
    *,
};

fn logits(folder: &TempDir) -> Vec<u32> {
    small::logits(folder.path())
}

fn folder(config: &Value, tensors: &Tensors) -> TempDir {
    let folder = tempdir().unwrap();
    small::write(folder.path(), config, tensors);
    folder
}

/// Quantises every matrix whose stem `chosen` gives a group size and bits for,
/// with scales in half precision. Returns the stored tensors, and what they
/// stand for by the definition of affine quantisation, value by value.
fn quantise(tensors: &Tensors, chosen: impl Fn(&str) -> Option<(i32, i32)>) -> (Tensors, Tensors) {
    let (mut stored, mut plain) = (Tensors::new(), Tensors::new());
    for (name, weight) in tensors {
        let stem = name.strip_suffix(".weight").unwrap();
        let Some((group_size, bits)) = chosen(stem).filter(|_| weight.ndim() == 2) else {
            stored.insert(name.clone(), weight.clone());
            plain.insert(name.clone(), weight.clone());
            continue;
        };
        let (packed, scales, biases) = ops::quantize(weight, group_size, bits).unwrap();
        let half = |array: Array| array.as_dtype(Dtype::Float16).unwrap();
        let (scales, biases) = (half(scales), half(biases));
        let values = unpacked(
            &packed,
            &scales,
            &biases,
            group_size as usize,
            bits as usize,
        );
        plain.insert(name.clone(), Array::from_slice(&values, weight.shape()));
        stored.insert(name.clone(), packed);
        stored.insert(format!("{stem}.scales"), scales);
        stored.insert(format!("{stem}.biases"), biases);
    }
    (stored, plain)
}

/// `scale · q + bias`, the q packed from the low bits of a row's bytes on.
fn unpacked(
    packed: &Array,
    scales: &Array,
    biases: &Array,
    group_size: usize,
    bits: usize,
) -> Vec<f32> {
    let f32s = |array: &Array| {
        array
            .as_dtype(Dtype::Float32)
            .unwrap()
            .to_vec_exact::<f32>()
            .unwrap()
    };
    let (scales, biases) = (f32s(scales), f32s(biases));
    let words = packed.to_vec_exact::<u32>().unwrap();
    let bit = |index: usize| (words[index / 32] >> (index % 32)) & 1;
    let value = |index: usize| {
        let q = (0..bits).fold(0, |q, place| q | bit(index * bits + place) << place);
        scales[index / group_size].mul_add(q as f32, biases[index / group_size])
    };
    (0..words.len() * 32 / bits).map(value).collect()
}

#[test]
fn quantised_weights_equal_their_values() {
    for (group_size, n_bits) in [(32, 4), (64, 8), (32, 3), (64, 2)] {
        let (stored, plain) = quantise(&small::tensors(1), |_| Some((group_size, n_bits)));
        let mut config = small::config();
        let plain = logits(&folder(&config, &plain));
        config["quantization"] = json!({"group_size": group_size, "bits": n_bits});
        let found = logits(&folder(&config, &stored));
        assert!(
            close(&found, &plain),
            "group size {group_size}, {n_bits} bits"
        );
    }
}

/// Multiplying and adding may round once or twice.
fn close(a: &[u32], b: &[u32]) -> bool {
    let floats = |bits: &[u32]| {
        bits.iter()
            .map(|&bits| f32::from_bits(bits))
            .collect::<Vec<_>>()
    };
    largest_difference(&floats(a), &floats(b)) < 1e-4
}

#[test]
fn a_layer_may_be_quantised_its_own_way_or_not_at_all() {
    let special = "model.layers.1.mlp.down_proj";
    let (stored, plain) = quantise(&small::tensors(2), |stem| match stem {
        "lm_head" => None,
        _ if stem == special => Some((32, 8)),
        _ => Some((64, 4)),
    });
    let mut config = small::config();
    let plain = logits(&folder(&config, &plain));
    config["quantization"] = json!({
        "group_size": 64, "bits": 4, "mode": "affine", "lm_head": false,
        special: {"group_size": 32, "bits": 8},
    });
    let found = logits(&folder(&config, &stored));
    assert!(close(&found, &plain));
}

#[test]
fn half_floats_equal_their_values() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16] {
        let half = small::as_dtype(&small::tensors(3), dtype);
        let whole = small::as_dtype(&half, Dtype::Float32);
        let config = small::config();
        assert_eq!(
            logits(&folder(&config, &half)),
            logits(&folder(&config, &whole))
        );
    }
}

#[test]
fn weights_may_be_spread_over_files() {
    let (config, tensors) = (small::config(), small::tensors(4));
    let whole = folder(&config, &tensors);
    let spread = folder(&config, &tensors);
    fs::remove_file(spread.path().join("model.safetensors")).unwrap();
    let mut map = serde_json::Map::new();
    for (index, part) in [("a", true), ("b", false)] {
        let own: Tensors = tensors
            .iter()
            .filter(|(name, _)| name.contains("layers.0") == part)
            .map(|(name, weight)| (name.clone(), weight.clone()))
            .collect();
        let file = format!("part-{index}.safetensors");
        Array::save_safetensors(&own, None, spread.path().join(&file)).unwrap();
        map.extend(own.keys().map(|name| (name.clone(), json!(file))));
    }
    let index = json!({"weight_map": map}).to_string();
    fs::write(spread.path().join("model.safetensors.index.json"), index).unwrap();
    assert_eq!(logits(&spread), logits(&whole));
}

#[test]
fn a_tied_head_is_the_embedding() {
    let mut tensors = small::tensors(5);
    tensors.insert(
        "lm_head.weight".to_owned(),
        tensors["model.embed_tokens.weight"].clone(),
    );
    let untied = logits(&folder(&small::config(), &tensors));
    let mut config = small::config();
    config["tie_word_embeddings"] = json!(true);
    // Some exporters leave the tied head in the file.
    assert_eq!(logits(&folder(&config, &tensors)), untied);
    tensors.remove("lm_head.weight");
    assert_eq!(logits(&folder(&config, &tensors)), untied);
}
