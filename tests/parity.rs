//! The promise: what this server computes is what mlx-lm computes.
//!
//! `parity/fixture.json` holds mlx-lm's prompt ids, greedy tokens and logits for
//! twenty prompts; `parity/make_fixture.py` says how it was made.
#![allow(clippy::unwrap_used)]

#[path = "parity/families.rs"]
mod families;
#[path = "support/model.rs"]
mod model;

use std::{fs::File, io::BufReader, path::Path};

use model::checkpoint;
use serde::Deserialize;
use serde_json::json;
use sluice::{
    assemble,
    engine::{Model, Row, TokenId},
    mlx::{self, Backend},
    text::{ChatInput, ChatTemplate},
};

/// What the rounding of two matrix products may make of a logit.
const TOLERANCE: f32 = 2e-4;
const MIN_POSITIONS: usize = 900;
/// Rows in a forward pass of a prefill.
const CHUNK: usize = 256;

#[derive(Deserialize)]
struct Fixture {
    end_id: TokenId,
    max_tokens: usize,
    probe_ids: Vec<TokenId>,
    cases: Vec<Case>,
}

/// A prompt and, for each generated position, parts of its logits row.
#[derive(Deserialize)]
struct Case {
    kind: String,
    text: String,
    prompt_ids: Vec<TokenId>,
    generated_ids: Vec<TokenId>,
    top_ids: Vec<Vec<TokenId>>,
    top_logits: Vec<Vec<f32>>,
    probe_logits: Vec<Vec<f32>>,
    log_sum_exp: Vec<f32>,
}

fn fixture() -> Fixture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/fixture.json");
    serde_json::from_reader(BufReader::new(File::open(path).unwrap())).unwrap()
}

fn argmax(row: &[f32]) -> TokenId {
    let better = |best: usize, id: usize| if row[id] > row[best] { id } else { best };
    (0..row.len()).reduce(better).unwrap() as TokenId
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let peak = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
    peak + row
        .iter()
        .map(|&logit| (f64::from(logit) - peak).exp())
        .sum::<f64>()
        .ln()
}

/// Computes the rows of one sequence after another, in chunks, and hands each
/// wanted row of logits on with its sequence's index.
fn forward(model: &mut dyn Model, rows: &[Row], mut take: impl FnMut(usize, &[f32])) {
    let width = model.vocabulary_size();
    for chunk in rows.chunks(CHUNK) {
        model.forward(chunk).unwrap();
        let wanted = chunk.iter().filter(|row| row.wants_logits);
        for (row, logits) in wanted.zip(model.logits().values().chunks_exact(width)) {
            take(row.slot as usize, logits);
        }
    }
}

/// Rows for `tokens` from `position` on; logits are wanted from `wanted` on.
fn rows(slot: usize, tokens: &[TokenId], position: usize, wanted: usize) -> Vec<Row> {
    let row = |(index, &token): (usize, &TokenId)| Row {
        token,
        position: (position + index) as u32,
        slot: slot as u32,
        wants_logits: position + index >= wanted,
    };
    tokens.iter().enumerate().map(row).collect()
}

/// Greedy tokens of all prompts, decoded in one batch from which sequences
/// leave at the end id.
fn greedy(model: &mut dyn Model, fixture: &Fixture) -> Vec<Vec<TokenId>> {
    let mut generated = vec![Vec::new(); fixture.cases.len()];
    let mut batch: Vec<Row> = Vec::new();
    for (slot, case) in fixture.cases.iter().enumerate() {
        batch.extend(rows(slot, &case.prompt_ids, 0, case.prompt_ids.len() - 1));
    }
    while !batch.is_empty() {
        let mut next = Vec::new();
        forward(model, &batch, |slot, logits| {
            let token = argmax(logits);
            generated[slot].push(token);
            if token != fixture.end_id && generated[slot].len() < fixture.max_tokens {
                let position = fixture.cases[slot].prompt_ids.len() + generated[slot].len() - 1;
                next.extend(rows(slot, &[token], position, 0));
            }
        });
        batch = next;
    }
    for slot in 0..fixture.cases.len() {
        model.release(slot as u32);
    }
    generated
}

/// The larger of two distances; not a number is the largest of all.
fn larger(a: f32, b: f32) -> f32 {
    if a.total_cmp(&b).is_lt() { b } else { a }
}

/// Largest distance of a position's logits, and of their log-sum-exp, from
/// mlx-lm's.
fn distance(logits: &[f32], case: &Case, position: usize, probe_ids: &[TokenId]) -> f32 {
    let top = case.top_ids[position]
        .iter()
        .zip(&case.top_logits[position]);
    let probes = probe_ids.iter().zip(&case.probe_logits[position]);
    let of_logits = top
        .chain(probes)
        .map(|(&id, &theirs)| (logits[id as usize] - theirs).abs());
    let of_sum = (log_sum_exp(logits) as f32 - case.log_sum_exp[position]).abs();
    of_logits.fold(of_sum, larger)
}

fn load() -> Box<dyn Model> {
    mlx::load(&checkpoint(), Backend::detect(), &mut |_| ()).unwrap()
}

#[test]
fn prompts_become_the_same_ids() {
    let checkpoint = checkpoint();
    let tokenizer = assemble::tokenizer(&checkpoint).unwrap();
    let source = checkpoint.chat_template.as_deref().unwrap();
    let template = ChatTemplate::new(
        source,
        checkpoint.bos_token.clone(),
        checkpoint.eos_token.clone(),
    )
    .unwrap();
    let cases = fixture().cases;
    for case in &cases {
        let ids = match case.kind.as_str() {
            "chat" => {
                let messages = [json!({"role": "user", "content": case.text})];
                let input = ChatInput {
                    messages: &messages,
                    tools: None,
                    add_generation_prompt: true,
                    extra: None,
                };
                tokenizer
                    .encode(&template.render(&input).unwrap(), true)
                    .unwrap()
            }
            "plain" => tokenizer.encode_prompt(&case.text).unwrap(),
            kind => panic!("unknown kind of prompt `{kind}`"),
        };
        assert_eq!(ids, case.prompt_ids, "{:?}", case.text);
    }
    assert_eq!(cases.len(), 20);
}

#[test]
fn greedy_tokens_are_those_of_mlx_lm() {
    let fixture = fixture();
    let generated = greedy(&mut *load(), &fixture);
    let mut n_positions = 0;
    for (case, ids) in fixture.cases.iter().zip(&generated) {
        assert_eq!(ids, &case.generated_ids, "{:?}", case.text);
        n_positions += ids.len();
    }
    println!(
        "{} prompts, {n_positions} greedy tokens equal",
        fixture.cases.len()
    );
    assert!(
        n_positions >= MIN_POSITIONS,
        "only {n_positions} positions were compared"
    );
}

#[test]
fn teacher_forced_logits_are_those_of_mlx_lm() {
    let fixture = fixture();
    let mut model = load();
    let mut distances: Vec<Vec<f32>> = vec![Vec::new(); fixture.cases.len()];
    for (slot, case) in fixture.cases.iter().enumerate() {
        let (_, inputs) = case.generated_ids.split_last().unwrap();
        let tokens = [case.prompt_ids.as_slice(), inputs].concat();
        let batch = rows(slot, &tokens, 0, case.prompt_ids.len() - 1);
        forward(&mut *model, &batch, |_, logits| {
            let position = distances[slot].len();
            distances[slot].push(distance(logits, case, position, &fixture.probe_ids));
        });
        model.release(slot as u32);
        assert_eq!(distances[slot].len(), case.generated_ids.len());
    }
    let n_positions: usize = distances.iter().map(Vec::len).sum();
    let largest = distances.iter().flatten().copied().fold(0.0, larger);
    println!("{n_positions} positions, logits differ by at most {largest:.1e}");
    for (case, of_case) in fixture.cases.iter().zip(&distances) {
        let position = of_case
            .iter()
            .position(|&distance| distance.is_nan() || distance > TOLERANCE);
        assert_eq!(position, None, "{:?}: {of_case:?}", case.text);
    }
    assert!(
        n_positions >= MIN_POSITIONS,
        "only {n_positions} positions were compared"
    );
}
