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
    let mut key = random::key(seed).unwrap();
    let mut tensors = Tensors::new();
    let mut add = |name: String, shape: &[i32]| {
        let (next, own) = random::split(&key, 2).unwrap();
        key = next;
        let weight = random::normal::<f32>(shape, None, 0.3, &own).unwrap();
        tensors.insert(name, weight);
    };
    for layer in 0..2 {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        add(name("input_layernorm"), &[64]);
        add(name("self_attn.q_proj"), &[64, 64]);
        add(name("self_attn.k_proj"), &[32, 64]);
        add(name("self_attn.v_proj"), &[32, 64]);
        add(name("self_attn.o_proj"), &[64, 64]);
        add(name("post_attention_layernorm"), &[64]);
        add(name("mlp.gate_proj"), &[128, 64]);
        add(name("mlp.up_proj"), &[128, 64]);
        add(name("mlp.down_proj"), &[64, 128]);
    }
    add("model.embed_tokens.weight".to_owned(), &[128, 64]);
    add("model.norm.weight".to_owned(), &[64]);
    add("lm_head.weight".to_owned(), &[128, 64]);
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
    assert!(model.logits().iter().all(|logit| logit.is_finite()));
    bits(model.logits())
}

pub(super) fn write(folder: &Path, config: &Value, tensors: &Tensors) {
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    Array::save_safetensors(tensors, None, folder.join("model.safetensors")).unwrap();
}
