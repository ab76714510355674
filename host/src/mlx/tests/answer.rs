//! What the default model answers, alone and among others.

use std::time::Instant;

use serde_json::{Value, json};
use tempfile::tempdir;

use super::*;
use crate::mlx::{Progress, TokenizerData};

const V: usize = 49_152;

/// Greedy, from the reference implementation: "The capital of France is
/// Paris.", then the end of the turn.
const ANSWER: [u32; 8] = [504, 3575, 282, 4649, 314, 7042, 30, 2];

#[test]
fn the_default_model_describes_itself() {
    let checkpoint = Checkpoint::open(&default_model_path()).unwrap();
    assert_eq!(checkpoint.model_type, "llama");
    assert_eq!(checkpoint.vocabulary_size, 49_152);
    assert_eq!(checkpoint.context_length, 8192);
    assert_eq!(checkpoint.end_of_sequence, [2]);
    assert_eq!(checkpoint.bos_token.as_deref(), Some("<|im_start|>"));
    assert_eq!(checkpoint.eos_token.as_deref(), Some("<|im_end|>"));
    assert!(
        checkpoint
            .chat_template
            .unwrap()
            .contains("add_generation_prompt")
    );
    let TokenizerData::Gguf(tokenizer) = checkpoint.tokenizer else {
        panic!("not GGUF")
    };
    assert_eq!(
        (tokenizer.model.as_str(), tokenizer.pre.as_str()),
        ("gpt2", "smollm")
    );
    assert_eq!(tokenizer.tokens.len(), 49_152);
    assert_eq!(tokenizer.merges.len(), 48_900);
    assert_eq!(tokenizer.token_types[..3], [3, 3, 3]);
    assert_eq!(tokenizer.add_bos, Some(false));
}

#[test]
fn it_answers_alike_alone_and_in_every_company() {
    let mut reports: Vec<Progress> = Vec::new();
    let checkpoint = Checkpoint::open(&default_model_path()).unwrap();
    let mut model = load(&checkpoint, Backend::Cpu, &mut |progress| {
        reports.push(progress);
    })
    .unwrap();
    assert!(reports.is_sorted_by_key(|progress| progress.done_bytes));
    let last = reports.last().unwrap();
    assert_eq!(last.done_bytes, last.total_bytes);

    let model = model.as_mut();
    assert_eq!(company::solo(model, &PROMPT, ANSWER.len()).0, ANSWER);
    company::does_not_matter(model, &PROMPT);
    wrong_rows_are_refused(model);
}

fn wrong_rows_are_refused(model: &mut dyn Model) {
    for (token, position, word) in [(49_152, 0, "vocabulary"), (7, 8192, "context"), (7, 1, "")] {
        let row = Row {
            token,
            position,
            slot: 0,
            wants_logits: true,
        };
        let error = model.forward(&[row]).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
        assert!(model.logits().values().is_empty());
    }
    model.release(0);
    model.forward(&[]).unwrap();
    assert!(model.logits().values().is_empty());
}

/// MLX's own operations are what a GPU computes with.
#[test]
fn host_operations_agree_with_mlx() {
    let path = default_model_path();
    let mut host = open(&path, Backend::Cpu);
    let mut plain = open(&path, Backend::Mlx);
    let mut largest = 0.0_f32;
    let mut compare = |batch: &[Row]| {
        host.forward(batch).unwrap();
        plain.forward(batch).unwrap();
        largest = largest.max(largest_difference(
            host.logits().values(),
            plain.logits().values(),
        ));
    };
    compare(&wanting(rows(3, 0, &PROMPT)));
    compare(&rows(1, 0, &PROMPT[4..9]));
    // Decode and prefill rows of three slots, interleaved.
    let (joining, early) = (rows(2, 0, &PROMPT[..3]), rows(1, 5, &PROMPT[9..11]));
    let late = rows(3, PROMPT.len(), &ANSWER[..1]);
    compare(&[
        joining[0], early[0], joining[1], late[0], early[1], joining[2],
    ]);
    compare(&rows(3, PROMPT.len() + 1, &ANSWER[1..]));
    println!("largest difference of a logit: {largest:e}");
    assert!(largest < 1e-3, "{largest:e}");
    // Slots that begin with another's positions, and that other.
    host.share(3, 4, 20);
    plain.share(3, 4, 20);
    let joining = rows(4, 20, &PROMPT[8..16]);
    let source = rows(3, PROMPT.len() + ANSWER.len(), &ANSWER[..1]);
    for batch in [&joining, &source] {
        host.forward(batch).unwrap();
        plain.forward(batch).unwrap();
        let difference = largest_difference(host.logits().values(), plain.logits().values());
        assert!(difference < 1e-3, "{difference:e}");
    }
}

/// Both take the frequencies of rope, each in a form of its own.
#[test]
fn stretched_rope_agrees_with_mlx() {
    let mut config = small::config();
    let tensors = small::tensors(8);
    let mut logits = |scaling: Value, backend| {
        let folder = tempdir().unwrap();
        config["rope_scaling"] = scaling;
        small::write(folder.path(), &config, &tensors);
        let mut model = open(folder.path(), backend);
        model
            .forward(&wanting(rows(0, 0, &[9, 8, 7, 6, 5, 4, 3, 2, 1])))
            .unwrap();
        model.logits().values().to_vec()
    };
    let plain = logits(Value::Null, Backend::Cpu);
    for scaling in [
        json!({"rope_type": "linear", "factor": 2.0}),
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
    ] {
        let host = logits(scaling.clone(), Backend::Cpu);
        let mlx = logits(scaling, Backend::Mlx);
        assert!(largest_difference(&host, &mlx) < 1e-3);
        assert!(largest_difference(&host, &plain) > 1e-2);
    }
}

#[test]
#[ignore = "prints times; run alone: cargo test --release -p sluice step_times -- --ignored --nocapture"]
fn step_times() {
    let mut model = open(&default_model_path(), Backend::Cpu);
    for n_rows in [1, 8, 16] {
        let mut batch: Vec<Row> = vec![];
        for slot in 0..n_rows {
            model.forward(&rows(slot, 0, &PROMPT)).unwrap();
            batch.extend(rows(slot, PROMPT.len(), &[greedy(model.logits().values())]));
        }
        let mut times: Vec<f64> = (0..64)
            .map(|_| {
                let start = Instant::now();
                model.forward(&batch).unwrap();
                for (row, logits) in batch
                    .iter_mut()
                    .zip(model.logits().values().chunks_exact(V))
                {
                    row.token = sluice_kernels::row::argmax(logits).unwrap();
                    row.position += 1;
                }
                start.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!(
            "B = {n_rows}: median {:.1} ms, least {:.1} ms",
            times[32], times[0]
        );
        (0..n_rows).for_each(|slot| model.release(slot));
    }
}
