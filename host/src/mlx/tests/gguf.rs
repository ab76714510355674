//! A small GGUF file, whole and with every byte of its header changed.

use std::{
    fs::{self, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::Path,
};

use mlx_rs::{Array, io::GgufFile};
use serde_json::{Value, json};
use tempfile::tempdir;

use super::{
    small::{self, Tensors},
    *,
};

/// GGUF's names of the parts of a layer.
const PARTS: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Those of Gemma that differ.
const GEMMA_PARTS: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// What llama.cpp's `convert_hf_to_gguf.py` makes of a folder.
fn write(path: &Path, config: &Value, tensors: &Tensors) {
    let mut file = GgufFile::new().unwrap();
    let model_type = config["model_type"].as_str().unwrap();
    let architecture = model_type.strip_suffix("_text").unwrap_or(model_type);
    file.insert_metadata("general.architecture", architecture)
        .unwrap();
    file.insert_metadata("tokenizer.ggml.model", "gpt2")
        .unwrap();
    let key = |name: &str| format!("{architecture}.{name}");
    let count = |name: &str| config[name].as_u64().map(|count| count as u32);
    let head_dim = count("head_dim").unwrap_or(16);
    for (key, number) in [
        (key("block_count"), count("num_hidden_layers")),
        (key("context_length"), count("max_position_embeddings")),
        (key("embedding_length"), count("hidden_size")),
        (key("feed_forward_length"), count("intermediate_size")),
        (key("attention.head_count"), count("num_attention_heads")),
        (key("attention.head_count_kv"), count("num_key_value_heads")),
        (key("attention.key_length"), Some(head_dim)),
        (key("attention.value_length"), Some(head_dim)),
        (key("attention.sliding_window"), count("sliding_window")),
        (
            key("attention.sliding_window_pattern"),
            count("sliding_window_pattern"),
        ),
        (key("rope.dimension_count"), Some(head_dim)),
        ("tokenizer.ggml.eos_token_id".to_owned(), Some(5)),
        (
            "tokenizer.ggml.eot_token_id".to_owned(),
            count("eot_token_id"),
        ),
    ] {
        if let Some(number) = number {
            let number = Array::from_slice(&[number], &[]);
            file.insert_metadata(&key, number).unwrap();
        }
    }
    for (name, setting) in [
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("rope.freq_base", "rope_theta"),
    ] {
        let number = config[setting].as_f64().unwrap() as f32;
        file.insert_metadata(key(name), Array::from_f32(number))
            .unwrap();
    }
    for (name, number) in config["gguf"].as_object().into_iter().flatten() {
        let number = Array::from_f32(number.as_f64().unwrap() as f32);
        file.insert_metadata(key(name), number).unwrap();
    }
    let mut tokens: Vec<String> = (0..128).map(|id| format!("t{id}")).collect();
    tokens[9] = "<end_of_turn>".to_owned();
    let mut types = [1_i32; 128];
    types[9] = 3;
    let types = Array::from_slice(&types, &[128]);
    file.insert_metadata("tokenizer.ggml.token_type", types)
        .unwrap();
    file.insert_metadata("tokenizer.ggml.tokens", tokens)
        .unwrap();
    for (name, weight) in tensors {
        let (name, weight) = converted(name, weight, model_type);
        file.insert_array(name, &weight).unwrap();
    }
    file.save(path).unwrap();
}

fn converted(name: &str, weight: &Array, model_type: &str) -> (String, Array) {
    let weight = match (model_type, name.rsplit_once("self_attn.")) {
        ("llama", Some((_, "q_proj.weight"))) => interleaved(weight, 4),
        ("llama", Some((_, "k_proj.weight"))) => interleaved(weight, 2),
        ("gemma3_text", _) if name.contains("norm") => weight.add(Array::from_f32(1.0)).unwrap(),
        _ => weight.clone(),
    };
    let name = name
        .replace("model.layers.", "blk.")
        .replace("model.embed_tokens.", "token_embd.")
        .replace("model.norm.", "output_norm.")
        .replace("lm_head.", "output.");
    let own = GEMMA_PARTS.iter().filter(|_| model_type == "gemma3_text");
    let mut parts = own.chain(&PARTS);
    let part = parts.find(|(part, _)| name.contains(part));
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
    for mut config in small::families() {
        config["eot_token_id"] = json!(7);
        let tensors = small::tensors_of(&config, 6);
        let folder = tempdir().unwrap();
        small::write(folder.path(), &config, &tensors);
        let file = folder.path().join("small.gguf");
        write(&file, &config, &tensors);
        let checkpoint = Checkpoint::open(&file).unwrap();
        assert_eq!(checkpoint.name, "small");
        assert_eq!(json!(checkpoint.model_type), config["model_type"]);
        assert_eq!(checkpoint.end_of_sequence, [5, 7]);
        assert_eq!(checkpoint.eos_token.as_deref(), Some("t5"));
        assert_eq!(checkpoint.bos_token, None);
        assert_eq!(
            small::logits(&file),
            small::logits(folder.path()),
            "{config}"
        );
    }
}

/// Token 9, a control token, is called `<end_of_turn>`.
#[test]
fn the_end_of_a_turn_is_known_by_its_name() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("small.gguf");
    write(&path, &small::config(), &small::tensors(6));
    assert_eq!(Checkpoint::open(&path).unwrap().end_of_sequence, [5, 9]);
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
    write(&file, &small::config(), &tensors);
    assert_eq!(small::logits(&file), small::logits(folder.path()));
}

/// Files from before the type of scaling had a key; llama.cpp reads them so.
#[test]
fn rope_with_a_factor_and_no_type_is_stretched() {
    let tensors = small::tensors(9);
    let mut config = small::config();
    config["rope_scaling"] = json!({"rope_type": "linear", "factor": 2.0});
    let folder = tempdir().unwrap();
    small::write(folder.path(), &config, &tensors);
    let stretched = small::logits(folder.path());
    let file = folder.path().join("small.gguf");
    for name in ["rope.scaling.factor", "rope.scale_linear"] {
        let mut config = small::config();
        config["gguf"] = json!({ name: 2.0 });
        write(&file, &config, &tensors);
        assert_eq!(small::logits(&file), stretched, "{name}");
    }
    write(&file, &small::config(), &tensors);
    assert_ne!(small::logits(&file), stretched);
}

/// Each must be refused, or be a model that loads and computes: MLX, which
/// trusts what it reads, never sees anything else.
#[test]
fn no_changed_byte_of_a_header_does_harm() {
    let tensors = small::tensors(7);
    let folder = tempdir().unwrap();
    let gguf = folder.path().join("small.gguf");
    write(&gguf, &small::config(), &tensors);
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
