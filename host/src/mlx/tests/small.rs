//! Folders with small models of random weights, for what the default model
//! does not show.

use std::{collections::BTreeMap, fs, path::Path};

use mlx_rs::{Array, Dtype, random};
use serde_json::{Value, json};

use super::{Backend, bits, open, rows, wanting};

/// Two layers, 4 heads over 2, untied.
pub(super) fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 128, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": false, "eos_token_id": 5,
        "hidden_act": "silu", "attention_bias": false, "mlp_bias": false,
    })
}

pub(super) type Tensors = BTreeMap<String, Array>;

/// Random weights for [`config`], the same for the same seed.
pub(super) fn tensors(seed: u64) -> Tensors {
    tensors_of(&config(), seed)
}

/// A small model of each family: its configuration, with parts that others
/// lack.
pub(super) fn families() -> Vec<Value> {
    let with = |more: Value| {
        let mut config = config();
        config["max_position_embeddings"] = json!(512);
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        config
    };
    vec![
        with(json!({})),
        with(json!({"model_type": "qwen2", "tie_word_embeddings": true})),
        with(json!({"model_type": "qwen3", "head_dim": 24})),
        with(json!({
            "model_type": "gemma3_text", "hidden_act": null, "head_dim": 32,
            "num_hidden_layers": 4, "num_key_value_heads": 1, "tie_word_embeddings": true,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32,
            "sliding_window": 12, "sliding_window_pattern": 3, "rope_theta": 1e6,
        })),
    ]
}

/// Random weights for a configuration.
pub(super) fn tensors_of(config: &Value, seed: u64) -> Tensors {
    let count = |key: &str| config[key].as_u64().unwrap() as i32;
    let (hidden, inner) = (count("hidden_size"), count("intermediate_size"));
    let n_heads = count("num_attention_heads");
    let head_dim = config["head_dim"]
        .as_u64()
        .map_or(hidden / n_heads, |dim| dim as i32);
    let (queries, keys) = (n_heads * head_dim, count("num_key_value_heads") * head_dim);
    let mut parts: Vec<(&str, Vec<i32>)> = vec![
        ("input_layernorm.weight", vec![hidden]),
        ("self_attn.q_proj.weight", vec![queries, hidden]),
        ("self_attn.k_proj.weight", vec![keys, hidden]),
        ("self_attn.v_proj.weight", vec![keys, hidden]),
        ("self_attn.o_proj.weight", vec![hidden, queries]),
        ("post_attention_layernorm.weight", vec![hidden]),
        ("mlp.gate_proj.weight", vec![inner, hidden]),
        ("mlp.up_proj.weight", vec![inner, hidden]),
        ("mlp.down_proj.weight", vec![hidden, inner]),
    ];
    let head_norms = [
        ("self_attn.q_norm.weight", vec![head_dim]),
        ("self_attn.k_norm.weight", vec![head_dim]),
    ];
    match config["model_type"].as_str().unwrap() {
        "qwen2" => parts.extend([
            ("self_attn.q_proj.bias", vec![queries]),
            ("self_attn.k_proj.bias", vec![keys]),
            ("self_attn.v_proj.bias", vec![keys]),
        ]),
        "qwen3" => parts.extend(head_norms),
        "gemma3_text" => {
            parts.extend(head_norms);
            parts.push(("pre_feedforward_layernorm.weight", vec![hidden]));
            parts.push(("post_feedforward_layernorm.weight", vec![hidden]));
        }
        _ => {}
    }
    let mut key = random::key(seed).unwrap();
    let mut tensors = Tensors::new();
    let mut add = |name: String, shape: &[i32]| {
        let (next, own) = random::split(&key, 2).unwrap();
        key = next;
        let weight = random::normal::<f32>(shape, None, 0.3, &own).unwrap();
        tensors.insert(name, weight);
    };
    for layer in 0..count("num_hidden_layers") {
        for (part, shape) in &parts {
            add(format!("model.layers.{layer}.{part}"), shape);
        }
    }
    let vocabulary = count("vocab_size");
    add(
        "model.embed_tokens.weight".to_owned(),
        &[vocabulary, hidden],
    );
    add("model.norm.weight".to_owned(), &[hidden]);
    if config["tie_word_embeddings"] == false {
        add("lm_head.weight".to_owned(), &[vocabulary, hidden]);
    }
    tensors
}

pub(super) fn as_dtype(tensors: &Tensors, dtype: Dtype) -> Tensors {
    let convert =
        |(name, weight): (&String, &Array)| (name.clone(), weight.as_dtype(dtype).unwrap());
    tensors.iter().map(convert).collect()
}

/// The logits after each of a few tokens, as bits.
pub(super) fn logits(path: &Path) -> Vec<u32> {
    let mut model = open(path, Backend::Cpu);
    model
        .forward(&wanting(rows(0, 0, &[3, 127, 0, 64, 9, 31])))
        .unwrap();
    assert!(
        model
            .logits()
            .values()
            .iter()
            .all(|logit| logit.is_finite())
    );
    bits(model.logits().values())
}

pub(super) fn write(folder: &Path, config: &Value, tensors: &Tensors) {
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    Array::save_safetensors(tensors, None, folder.join("model.safetensors")).unwrap();
}
