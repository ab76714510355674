//! What holds for every family, on small models of random weights.

use serde_json::json;
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
            let largest = largest_difference(host.logits(), plain.logits());
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
    let logits = |config: &serde_json::Value, first: u32, backend: Backend| {
        let folder = tempdir().unwrap();
        small::write(folder.path(), config, &tensors);
        let mut model = open(folder.path(), backend);
        let tokens = [&[first], &tokens[1..]].concat();
        model.forward(&wanting(rows(0, 0, &tokens))).unwrap();
        let rows = model.logits().chunks_exact(128);
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
