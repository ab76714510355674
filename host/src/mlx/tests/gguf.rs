//! A small GGUF file, whole and with every byte of its header changed.

use std::{
    fs::{self, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::Path,
};

use mlx_rs::{Array, io::GgufFile};
use serde_json::json;
use tempfile::tempdir;

use super::{
    small::{self, Tensors},
    *,
};

/// GGUF's names of the parts of a layer.
const PARTS: [(&str, &str); 9] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// What llama.cpp's `convert_hf_to_gguf.py` makes of a folder.
fn write(path: &Path, tensors: &Tensors) {
    let mut file = GgufFile::new().unwrap();
    for (key, text) in [
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
    ] {
        file.insert_metadata(key, text).unwrap();
    }
    for (key, number) in [
        ("llama.block_count", 2_u32),
        ("llama.context_length", 64),
        ("llama.embedding_length", 64),
        ("llama.feed_forward_length", 128),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("llama.rope.dimension_count", 16),
        ("tokenizer.ggml.eos_token_id", 5),
        ("tokenizer.ggml.eot_token_id", 7),
    ] {
        let number = Array::from_slice(&[number], &[]);
        file.insert_metadata(key, number).unwrap();
    }
    for (key, number) in [
        ("llama.attention.layer_norm_rms_epsilon", 1e-5_f32),
        ("llama.rope.freq_base", 10_000.0),
    ] {
        file.insert_metadata(key, Array::from_f32(number)).unwrap();
    }
    let tokens: Vec<String> = (0..128).map(|id| format!("t{id}")).collect();
    file.insert_metadata("tokenizer.ggml.tokens", tokens)
        .unwrap();
    for (name, weight) in tensors {
        let (name, weight) = converted(name, weight);
        file.insert_array(name, &weight).unwrap();
    }
    file.save(path).unwrap();
}

fn converted(name: &str, weight: &Array) -> (String, Array) {
    let weight = match name.rsplit_once("self_attn.") {
        Some((_, "q_proj.weight")) => interleaved(weight, 4),
        Some((_, "k_proj.weight")) => interleaved(weight, 2),
        _ => weight.clone(),
    };
    let name = name
        .replace("model.layers.", "blk.")
        .replace("model.embed_tokens.", "token_embd.")
        .replace("model.norm.", "output_norm.")
        .replace("lm_head.", "output.");
    let part = PARTS.iter().find(|(part, _)| name.contains(part));
    let name = part.map_or(name.clone(), |(part, gguf)| name.replace(part, gguf));
    (name, weight)
}

/// `permute` of `convert_hf_to_gguf.py`.
fn interleaved(weight: &Array, n_heads: i32) -> Array {
    let (lines, columns) = (weight.dim(0), weight.dim(1));
    weight
        .reshape(&[n_heads, 2, lines / n_heads / 2, columns])
        .unwrap()
        .swap_axes(1, 2)
        .unwrap()
        .reshape(&[lines, columns])
        .unwrap()
}

#[test]
fn a_gguf_file_equals_the_folder_it_was_made_of() {
    let tensors = small::tensors(6);
    let folder = tempdir().unwrap();
    small::write(folder.path(), &small::config(), &tensors);
    let file = folder.path().join("small.gguf");
    write(&file, &tensors);
    let checkpoint = Checkpoint::open(&file).unwrap();
    assert_eq!(checkpoint.name, "small");
    assert_eq!(checkpoint.end_of_sequence, [5, 7]);
    assert_eq!(checkpoint.eos_token.as_deref(), Some("t5"));
    assert_eq!(checkpoint.bos_token, None);
    assert_eq!(small::logits(&file), small::logits(folder.path()));
}

/// So the files of Llama 3 say it.
#[test]
fn rope_may_be_stretched_by_a_tensor() {
    let mut tensors = small::tensors(9);
    let mut config = small::config();
    config["rope_scaling"] = json!({"rope_type": "linear", "factor": 2.0});
    let folder = tempdir().unwrap();
    small::write(folder.path(), &config, &tensors);
    let factors = Array::from_slice(&[2.0_f32; 8], &[8]);
    tensors.insert("rope_freqs.weight".to_owned(), factors);
    let file = folder.path().join("small.gguf");
    write(&file, &tensors);
    assert_eq!(small::logits(&file), small::logits(folder.path()));
}

/// Each must be refused, or be a model that loads and computes: MLX, which
/// trusts what it reads, never sees anything else.
#[test]
fn no_changed_byte_of_a_header_does_harm() {
    let tensors = small::tensors(7);
    let folder = tempdir().unwrap();
    let gguf = folder.path().join("small.gguf");
    write(&gguf, &tensors);
    let whole = fs::read(&gguf).unwrap();
    let data_bytes: usize = tensors.values().map(Array::nbytes).sum();
    let n_models = changed(&gguf, &gguf, &whole, whole.len() - data_bytes);
    assert!(n_models > 0, "every change was refused");

    fs::remove_file(&gguf).unwrap();
    small::write(folder.path(), &small::config(), &tensors);
    let file = folder.path().join("model.safetensors");
    let whole = fs::read(&file).unwrap();
    changed(&file, folder.path(), &whole, whole.len() - data_bytes);
}

/// Changes each of the first `n_bytes` in turn and returns how many changes
/// left a model.
fn changed(file: &Path, model: &Path, whole: &[u8], n_bytes: usize) -> usize {
    let mut n_models = 0;
    let mut content = OpenOptions::new().write(true).open(file).unwrap();
    let mut set = |index: usize, byte: u8| {
        content.seek(SeekFrom::Start(index as u64)).unwrap();
        content.write_all(&[byte]).unwrap();
    };
    for (index, &byte) in whole[..n_bytes].iter().enumerate() {
        for flip in [0x01, 0x80] {
            set(index, byte ^ flip);
            let Ok(checkpoint) = Checkpoint::open(model) else {
                continue;
            };
            n_models += 1;
            // Values of the metadata that only change the result.
            if let Ok(mut model) = load(&checkpoint, Backend::Cpu, &mut |_| ()) {
                model.forward(&rows(0, 0, &[1, 2])).unwrap();
            }
        }
        set(index, byte);
    }
    n_models
}
