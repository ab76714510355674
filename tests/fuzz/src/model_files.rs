//! Model files: whatever is in one, it is refused or it is a model that
//! computes, and no tensor lies outside of it.

use std::fs;
use std::path::Path;

use sluice::assemble;
use sluice::engine::Row;
use sluice::mlx::{Backend, Checkpoint, load, tensor_extents};
use sluice::text::ChatTemplate;

/// What stands beside the safetensors file.
const CONFIG: &str = r#"{
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "vocab_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 1
}"#;

/// A GGUF file.
pub fn gguf(bytes: &[u8]) -> bool {
    let Ok(folder) = tempfile::tempdir() else {
        return false;
    };
    let file = folder.path().join("model.gguf");
    check(&file, &file, bytes)
}

/// A safetensors file in a folder with a fixed configuration.
pub fn safetensors(bytes: &[u8]) -> bool {
    let Ok(folder) = tempfile::tempdir() else {
        return false;
    };
    let parts = [("config.json", CONFIG), ("tokenizer.json", "{}")];
    if parts
        .iter()
        .any(|(name, text)| fs::write(folder.path().join(name), text).is_err())
    {
        return false;
    }
    check(
        &folder.path().join("model.safetensors"),
        folder.path(),
        bytes,
    )
}

fn check(file: &Path, model: &Path, bytes: &[u8]) -> bool {
    if fs::write(file, bytes).is_err() {
        return false;
    }
    let extents = tensor_extents(file);
    for extent in extents.iter().flatten() {
        assert!(
            extent.start <= extent.end && extent.end <= bytes.len() as u64,
            "a tensor lies at {extent:?} of {} bytes",
            bytes.len()
        );
    }
    let Ok(checkpoint) = Checkpoint::open(model) else {
        return false;
    };
    assert!(
        extents.is_ok(),
        "a model whose header is refused: {extents:?}"
    );
    assert!(
        checkpoint
            .end_of_sequence
            .iter()
            .all(|&id| id < checkpoint.vocabulary_size)
    );
    if let Ok(tokenizer) = assemble::tokenizer(&checkpoint) {
        assert!(tokenizer.size() <= checkpoint.vocabulary_size);
        if let Ok(ids) = tokenizer.encode("a b\u{e9}", false) {
            assert!(ids.iter().all(|&id| id < tokenizer.size()), "{ids:?}");
        }
    }
    if let Some(source) = &checkpoint.chat_template {
        let names = (checkpoint.bos_token.clone(), checkpoint.eos_token.clone());
        let _ = ChatTemplate::new(source, names.0, names.1);
    }
    let Ok(mut model) = load(&checkpoint, Backend::Cpu, &mut |_| ()) else {
        return false;
    };
    let row = |position: u32| Row {
        token: position % checkpoint.vocabulary_size,
        position,
        slot: 0,
        wants_logits: position == 1,
    };
    let computed = model.forward(&[row(0), row(1)]);
    assert!(computed.is_ok(), "{computed:?}");
    assert_eq!(
        model.logits().values().len(),
        checkpoint.vocabulary_size as usize
    );
    true
}
