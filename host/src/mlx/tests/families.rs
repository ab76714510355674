//! What holds for every family, on small models of random weights.

use serde_json::{Value, json};
use tempfile::tempdir;

use super::*;

/// A prompt of the small models' vocabulary.
fn prompt() -> Vec<u32> {
    PROMPT.iter().map(|token| token % 128).collect()
}

#[test]
fn company_does_not_matter_in_any_family() {
    for config in small::families() {
        let folder = tempdir().unwrap();
        small::write(folder.path(), &config, &small::tensors_of(&config, 11));
        let mut model = open(folder.path(), Backend::Cpu);
        company::does_not_matter(model.as_mut(), &prompt());
    }
}

#[test]
fn both_backends_agree_in_every_family() {
    for config in small::families() {
        let folder = tempdir().unwrap();
        small::write(folder.path(), &config, &small::tensors_of(&config, 12));
        let mut host = open(folder.path(), Backend::Cpu);
        let mut plain = open(folder.path(), Backend::Mlx);
        let mut compare = |batch: &[Row]| {
            host.forward(batch).unwrap();
            plain.forward(batch).unwrap();
            let largest = largest_difference(host.logits().values(), plain.logits().values());
            let family = &config["model_type"];
            assert!(
                largest < 1e-3,
                "{family}, {} rows: {largest:e}",
                batch.len()
            );
        };
        let prompt = prompt().repeat(3);
        compare(&wanting(rows(0, 0, &prompt)));
        compare(&rows(1, 0, &prompt[..9]));
        // Prefill and decode rows of three slots, interleaved.
        let (late, early) = (rows(0, prompt.len(), &[5]), rows(1, 9, &prompt[9..11]));
        let joining = rows(2, 0, &prompt[40..43]);
        compare(&[
            joining[0], early[0], late[0], joining[1], early[1], joining[2],
        ]);
        let decoded: Vec<Row> = [(0, prompt.len() + 1), (1, 11), (2, 3)]
            .into_iter()
            .flat_map(|(slot, position)| rows(slot, position, &[7]))
            .collect();
        compare(&decoded);
    }
}

/// A layer that sees a window forgets what is before it: where all layers see
/// windows, what lies further back than they reach together is without effect.
#[test]
fn windows_forget() {
    let mut config = small::families().pop().unwrap();
    let n_layers = 4;
    config["layer_types"] = json!(vec!["sliding_attention"; n_layers]);
    let reach = n_layers * (12 - 1);
    let tensors = small::tensors_of(&config, 13);
    let tokens: Vec<u32> = (0..100).map(|index| index * 37 % 128).collect();
    let logits = |config: &Value, first: u32, backend: Backend| {
        let folder = tempdir().unwrap();
        small::write(folder.path(), config, &tensors);
        let mut model = open(folder.path(), backend);
        let tokens = [&[first], &tokens[1..]].concat();
        model.forward(&wanting(rows(0, 0, &tokens))).unwrap();
        let rows = model.logits().values().chunks_exact(128);
        rows.map(bits).collect::<Vec<_>>()
    };
    for backend in [Backend::Cpu, Backend::Mlx] {
        let [one, other] = [3, 90].map(|first| logits(&config, first, backend));
        assert_ne!(one[reach], other[reach], "{backend:?}");
        assert_eq!(one[reach + 1..], other[reach + 1..], "{backend:?}");
    }
    config["layer_types"][2] = json!("full_attention");
    let [one, other] = [3, 90].map(|first| logits(&config, first, Backend::Cpu));
    assert_ne!(one[99], other[99]);
}

#[test]
fn what_a_family_does_not_compute_is_refused_by_name() {
    let families = small::families();
    let refusal = |index: usize, key: &str, value: &Value| {
        let mut config: Value = families[index].clone();
        let tensors = small::tensors_of(&config, 14);
        config[key] = value.clone();
        let folder = tempdir().unwrap();
        small::write(folder.path(), &config, &tensors);
        Checkpoint::open(folder.path()).unwrap_err().to_string()
    };
    let (llama, qwen2, qwen3, gemma3) = (0, 1, 2, 3);
    for (family, key, value, words) in [
        (
            qwen2,
            "use_sliding_window",
            json!(true),
            "use_sliding_window",
        ),
        (
            qwen2,
            "layer_types",
            json!(["sliding_attention"]),
            "only full_attention",
        ),
        (qwen2, "rope_theta", json!(null), "`rope_theta` is absent"),
        (qwen2, "hidden_act", json!("gelu"), "only silu"),
        (
            qwen3,
            "layer_types",
            json!(["full_attention", 3]),
            "a list of texts",
        ),
        (qwen3, "attention_bias", json!(true), "attention_bias"),
        (qwen3, "rope_theta", json!(null), "`rope_theta` is absent"),
        (
            gemma3,
            "hidden_activation",
            json!("gelu"),
            "only gelu_pytorch_tanh",
        ),
        (
            gemma3,
            "final_logit_softcapping",
            json!(30.0),
            "final_logit_softcapping",
        ),
        (
            gemma3,
            "attn_logit_softcapping",
            json!(50.0),
            "attn_logit_softcapping",
        ),
        (
            gemma3,
            "use_bidirectional_attention",
            json!(true),
            "only false",
        ),
        (
            gemma3,
            "sliding_window",
            json!(null),
            "`sliding_window` is absent",
        ),
        (
            gemma3,
            "layer_types",
            json!(["full_attention"]),
            "the model has 4 layers",
        ),
        (
            gemma3,
            "layer_types",
            json!([
                "full_attention",
                "full_attention",
                "full_attention",
                "chunked_attention"
            ]),
            "chunked_attention",
        ),
        (
            gemma3,
            "rope_scaling",
            json!({"rope_type": "longrope", "factor": 2.0}),
            "longrope",
        ),
        (
            llama,
            "rope_parameters",
            json!({"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
            "partial_rotary_factor",
        ),
        // What another family has.
        (llama, "model_type", json!("qwen2"), "q_proj.bias"),
        (qwen3, "model_type", json!("llama"), "does not use"),
        (
            gemma3,
            "model_type",
            json!("gemma3"),
            "supported: llama, qwen2, qwen3, gemma3_text",
        ),
    ] {
        let error = refusal(family, key, &value);
        assert!(error.contains(words), "{key} {value}: {error}");
    }
}

/// Newer configurations have the rope of each kind of layers in a table.
#[test]
fn ropes_by_kind_of_layer_are_those_of_older_configurations() {
    let mut config = small::families().pop().unwrap();
    config["rope_local_base_freq"] = json!(5000.0);
    config["rope_scaling"] = json!({"rope_type": "linear", "factor": 8.0});
    let tensors = small::tensors_of(&config, 15);
    let logits = |config: &Value| {
        let folder = tempdir().unwrap();
        small::write(folder.path(), config, &tensors);
        small::logits(folder.path())
    };
    let older = logits(&config);
    for key in ["rope_local_base_freq", "rope_scaling", "rope_theta"] {
        config[key] = json!(null);
    }
    config["rope_parameters"] = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    });
    assert_eq!(logits(&config), older);
    config["rope_parameters"]["sliding_attention"]["rope_theta"] = json!(20_000.0);
    assert_ne!(logits(&config), older);
}
