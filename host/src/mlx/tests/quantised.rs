//! The ways a folder can store the same weights.

use std::fs;

use mlx_rs::{Array, Dtype, ops};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use super::{
    small::{self, Tensors},
    *,
};
use crate::mlx::weights::Weights;

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
        assert!(found == plain, "group size {group_size}, {n_bits} bits");
    }
}

#[test]
fn a_layer_may_be_quantised_its_own_way_or_not_at_all() {
    let special = "model.layers.1.mlp.down_proj";
    // Its queries and keys, which are multiplied together with it, are not.
    let values = "model.layers.0.self_attn.v_proj";
    let (stored, plain) = quantise(&small::tensors(2), |stem| match stem {
        "lm_head" => None,
        _ if [special, values].contains(&stem) => Some((32, 8)),
        _ => Some((64, 4)),
    });
    let mut config = small::config();
    let plain = logits(&folder(&config, &plain));
    config["quantization"] = json!({
        "group_size": 64, "bits": 4, "mode": "affine", "lm_head": false,
        special: {"group_size": 32, "bits": 8},
        values: {"group_size": 32, "bits": 8},
    });
    assert_eq!(logits(&folder(&config, &stored)), plain);
}

/// The default model as its file has it, and as a folder of its weights in
/// f32, from MLX's own unpacking.
#[test]
fn the_default_model_has_the_logits_of_its_weights_in_f32() {
    let path = default_model_path();
    let folder = tempdir().unwrap();
    {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let mut ignore = |_| ();
        let mut weights = Weights::open(&checkpoint, &mut ignore).unwrap();
        let take = |name: &String| (name.clone(), halves(name, &weights.take(name).unwrap()));
        let tensors: Tensors = checkpoint.tensors.keys().map(take).collect();
        small::write(folder.path(), &json!(checkpoint.config), &tensors);
    }
    let mut quantised = open(&path, Backend::Cpu);
    let mut dense = open(folder.path(), Backend::Cpu);
    let mut compare = |batch: &[Row]| {
        quantised.forward(batch).unwrap();
        dense.forward(batch).unwrap();
        let n_rows = batch.len();
        assert!(
            bits(quantised.logits().values()) == bits(dense.logits().values()),
            "{n_rows} rows"
        );
    };
    compare(&wanting(rows(0, 0, &PROMPT)));
    for n_rows in [1, 2, 5, 8, 16] {
        let batch: Vec<Row> = (1..=n_rows)
            .flat_map(|slot| rows(slot, 0, &PROMPT[slot as usize..][..1]))
            .collect();
        compare(&batch);
    }
}

/// Queries and keys with the pairs of rope in halves, as folders have them.
fn halves(name: &str, weight: &Array) -> Array {
    let n_heads = match name.rsplit_once("self_attn.") {
        Some((_, "q_proj.weight")) => 9,
        Some((_, "k_proj.weight")) => 3,
        _ => return weight.clone(),
    };
    let shape = weight.shape();
    let pairs = weight.reshape(&[n_heads, 32, 2, 576]).unwrap();
    pairs.swap_axes(1, 2).unwrap().reshape(shape).unwrap()
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
