//! Files that are no models: one clear sentence each.

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    path::Path,
};

use mlx_rs::Array;
use serde_json::{Value, json};
use tempfile::tempdir;

use super::{small, *};

/// The sentence, which names neither this crate's files nor MLX's.
fn refusal(path: &Path) -> String {
    let error = Checkpoint::open(path).unwrap_err().to_string();
    assert!(
        !error.contains('\n') && !error.contains(".rs") && !error.contains(".cpp"),
        "{error}"
    );
    error
}

/// What is said about a folder after `change` of its configuration.
fn refused_config(change: impl FnOnce(&mut Value)) -> String {
    let folder = tempdir().unwrap();
    let mut config = small::config();
    change(&mut config);
    small::write(folder.path(), &config, &small::tensors(0));
    refusal(folder.path())
}

fn refused_tensors(change: impl FnOnce(&mut small::Tensors)) -> String {
    let folder = tempdir().unwrap();
    let mut tensors = small::tensors(0);
    change(&mut tensors);
    small::write(folder.path(), &small::config(), &tensors);
    refusal(folder.path())
}

#[test]
fn paths_that_name_no_model() {
    let folder = tempdir().unwrap();
    assert!(refusal(&folder.path().join("absent")).contains("could not read"));
    assert!(refusal(folder.path()).contains("is no model"));
    let file = folder.path().join("model.bin");
    fs::write(&file, b"GGUF").unwrap();
    assert!(refusal(&file).contains(".gguf"));
}

#[test]
fn safetensors_cut_short_at_any_length() {
    let folder = tempdir().unwrap();
    small::write(folder.path(), &small::config(), &small::tensors(0));
    Checkpoint::open(folder.path()).unwrap();
    let file = folder.path().join("model.safetensors");
    let whole = fs::read(&file).unwrap();
    for length in [0, 4, 7, 8, 9, 100, 2000, whole.len() / 2, whole.len() - 1] {
        fs::write(&file, &whole[..length]).unwrap();
        let error = refusal(&file.with_file_name(""));
        let expected = if length < 8 {
            "not a valid safetensors file"
        } else {
            "cut short"
        };
        assert!(error.contains(expected), "{length}: {error}");
    }
    let mut wrong = whole.clone();
    wrong[8] = b'x';
    fs::write(&file, &wrong).unwrap();
    assert!(refusal(folder.path()).contains("not JSON"));
    wrong[7] = 1;
    fs::write(&file, &wrong).unwrap();
    assert!(refusal(folder.path()).contains("its header would have"));
}

#[test]
fn safetensors_with_impossible_tensors() {
    let header = |tensor: Value| {
        let folder = tempdir().unwrap();
        small::write(folder.path(), &small::config(), &small::tensors(0));
        let text = json!({"model.norm.weight": tensor}).to_string();
        let mut content = (text.len() as u64).to_le_bytes().to_vec();
        content.extend(text.as_bytes());
        content.extend([0; 1024]);
        fs::write(folder.path().join("model.safetensors"), content).unwrap();
        refusal(folder.path())
    };
    let f8 = json!({"dtype": "F8_E4M3", "shape": [64], "data_offsets": [0, 64]});
    assert!(header(f8).contains("stored as F8_E4M3"));
    let longer = json!({"dtype": "F32", "shape": [64], "data_offsets": [0, 255]});
    assert!(header(longer).contains("has shape [64] but lies at bytes 0 to 255"));
    let huge = json!({"dtype": "F32", "shape": [1_u64 << 62, 4], "data_offsets": [0, 0]});
    assert!(header(huge).contains("has shape"));
    let backwards = json!({"dtype": "F32", "shape": [1], "data_offsets": [u64::MAX, 3]});
    assert!(header(backwards).contains("has shape"));
}

#[test]
fn tensors_that_do_not_fit() {
    let error = refused_tensors(|tensors| {
        tensors.remove("model.layers.1.mlp.up_proj.weight");
        tensors.remove("model.norm.weight");
    });
    let expected =
        "2 of the model's tensors are missing, the first is `model.layers.1.mlp.up_proj.weight`";
    assert!(error.contains(expected), "{error}");
    let error = refused_tensors(|tensors| {
        tensors.insert(
            "model.norm.weight".to_owned(),
            Array::from_slice(&[1.0_f32; 32], &[32]),
        );
    });
    assert!(
        error.contains("`model.norm.weight` has shape [32]") && error.contains("[64]"),
        "{error}"
    );
    let error = refused_tensors(|tensors| {
        let bias = Array::from_slice(&[1.0_f32; 64], &[64]);
        tensors.insert("model.layers.0.self_attn.q_proj.bias".to_owned(), bias);
    });
    assert!(
        error.contains("1 tensors that its family does not use"),
        "{error}"
    );
    assert!(error.contains("q_proj.bias"), "{error}");
    let error = refused_tensors(|tensors| {
        let packed = Array::from_slice(&[0_u32; 64], &[64]);
        tensors.insert("model.norm.weight".to_owned(), packed);
    });
    assert!(error.contains("`model.norm.scales`"), "{error}");
}

#[test]
fn configurations_that_are_not_computed() {
    for (key, value, word) in [
        (
            "model_type",
            json!("mamba"),
            "supported: llama, qwen2, qwen3, gemma3_text",
        ),
        ("model_type", json!(null), "model_type"),
        ("attention_bias", json!(true), "attention_bias"),
        ("mlp_bias", json!(true), "mlp_bias"),
        ("hidden_act", json!("gelu"), "silu"),
        ("num_attention_heads", json!(0), "positive integer"),
        ("num_attention_heads", json!(-4), "positive integer"),
        ("num_key_value_heads", json!(3), "divide"),
        ("num_hidden_layers", json!(null), "num_hidden_layers"),
        (
            "num_hidden_layers",
            json!(3),
            "9 of the model's tensors are missing",
        ),
        (
            "num_hidden_layers",
            json!(2_000_000_000),
            "the model has 21 tensors",
        ),
        ("head_dim", json!(2_000_000_000), "at most 4096"),
        ("head_dim", json!(15), "head_dim"),
        ("vocab_size", json!(129), "has shape [128, 64]"),
        ("rms_norm_eps", json!("small"), "rms_norm_eps"),
        ("eos_token_id", json!([5, 128]), "eos_token_id"),
        (
            "rope_scaling",
            json!({"rope_type": "dynamic", "factor": 2}),
            "dynamic",
        ),
        ("rope_scaling", json!({"rope_type": "linear"}), "factor"),
        (
            "quantization_config",
            json!({"quant_method": "gptq"}),
            "quantization_config",
        ),
    ] {
        let error = refused_config(|config| config[key] = value.clone());
        assert!(error.contains(word), "{key} {value}: {error}");
    }
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{").unwrap();
    assert!(refusal(folder.path()).contains("not a valid JSON file"));
}

#[test]
fn gguf_cut_short_at_any_length() {
    let whole = default_model_path();
    let length = fs::metadata(&whole).unwrap().len();
    // The header has 1.8 MB; what is beyond is not read when a file is opened.
    let mut head = vec![0; 4 << 20];
    File::open(&whole).unwrap().read_exact(&mut head).unwrap();
    let folder = tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    for cut in [
        0, 3, 4, 7, 8, 20, 24, 100, 2000, 100_000, 1_000_000, 1_700_000, 3_000_000,
    ] {
        fs::write(&file, &head[..cut]).unwrap();
        let error = refusal(&file);
        let expected = if cut < 4 {
            "does not begin with GGUF"
        } else {
            "cut short"
        };
        assert!(error.contains(expected), "{cut}: {error}");
    }
    fs::write(&file, &head).unwrap();
    let sparse = OpenOptions::new().write(true).open(&file).unwrap();
    sparse.set_len(length - 1).unwrap();
    let error = refusal(&file);
    assert!(
        error.contains(&format!(
            "{} bytes and its content needs {length}",
            length - 1
        )),
        "{error}"
    );
    sparse.set_len(length).unwrap();
    Checkpoint::open(&file).unwrap();
}

/// A GGUF file of version 3 from its parts, with metadata as bytes.
fn gguf(n_tensors: u64, n_values: u64, rest: &[u8]) -> String {
    let folder = tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let mut content = b"GGUF\x03\0\0\0".to_vec();
    content.extend(n_tensors.to_le_bytes());
    content.extend(n_values.to_le_bytes());
    content.extend(rest);
    content.extend([0; 64]);
    fs::write(&file, content).unwrap();
    refusal(&file)
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

#[test]
fn gguf_of_other_kinds() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    fs::write(&file, b"GGML\x03\0\0\0").unwrap();
    assert!(refusal(&file).contains("does not begin with GGUF"));
    fs::write(&file, b"GGUF\0\0\0\x03").unwrap();
    assert!(refusal(&file).contains("its version is"));

    assert!(gguf(0, 0, &[]).contains("general.architecture"));
    let architecture = |name: &str| {
        [
            text("general.architecture"),
            8_u32.to_le_bytes().to_vec(),
            text(name),
        ]
        .concat()
    };
    assert!(gguf(0, 1, &architecture("mamba")).contains("`mamba` is not supported"));
    assert!(gguf(0, 1, &architecture("llama")).contains("tokenizer"));
    // Counts far beyond the file.
    assert!(gguf(0, u64::MAX, &architecture("llama")).contains("cut short"));
    assert!(gguf(u64::MAX, 0, &[]).contains("cut short"));
    let array = [
        text("a"),
        9_u32.to_le_bytes().to_vec(),
        8_u32.to_le_bytes().to_vec(),
    ]
    .concat();
    assert!(gguf(0, 1, &[array, u64::MAX.to_le_bytes().to_vec()].concat()).contains("cut short"));
    // One tensor of 256 values in an encoding with a code book.
    let tensor = [
        text("blk.0.attn_q.weight"),
        1_u32.to_le_bytes().to_vec(),
        256_u64.to_le_bytes().to_vec(),
        16_u32.to_le_bytes().to_vec(),
        0_u64.to_le_bytes().to_vec(),
    ]
    .concat();
    let error = gguf(1, 0, &tensor);
    assert!(
        error.contains("`blk.0.attn_q.weight` is stored as IQ2_XXS; supported: F32, F16, Q4_0"),
        "{error}"
    );
}

#[test]
fn chat_templates_may_have_names() {
    let folder = tempdir().unwrap();
    small::write(folder.path(), &small::config(), &small::tensors(0));
    let file = folder.path().join("tokenizer_config.json");
    let templates = |chat_template: Value| {
        let config = json!({ "chat_template": chat_template });
        fs::write(&file, config.to_string()).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        (checkpoint.chat_template, checkpoint.tool_template)
    };
    assert_eq!(templates(json!("one")), (Some("one".to_owned()), None));
    let named = |name: &str| json!({"name": name, "template": format!("of {name}")});
    assert_eq!(
        templates(json!([named("rag"), named("tool_use"), named("default")])),
        (
            Some("of default".to_owned()),
            Some("of tool_use".to_owned())
        )
    );
}
