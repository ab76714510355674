//! What a stage knows of its sequence is right on every path: whatever the
//! length of the prompt and its chunks, for one row and for eight, beside rows
//! that come, go and have other stages, for each of several choices, and past
//! forced tokens. The shipped components run under the real engine; the model
//! is scripted so that the right answer can be worked out by hand.
#![allow(clippy::unwrap_used)]
// Every logit here is exact.
#![allow(clippy::float_cmp)]

mod support;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sluice::engine::{
    Chain, EVENT_BUFFER, EngineConfig, Event, Fault, FinishReason, Handle, LogitsRow, Model,
    ModelInfo, Plan, Submission, TokenId, fake::ScriptedModel, spawn,
};
use sluice::plugin::{Choices, SequenceInfo, StageRef};
use support::{Plugins, numbered_vocabulary, shipped, test_guest};
use tokio::sync::mpsc::Receiver;

const V: u32 = 64;

fn plugins() -> Plugins {
    let own = ["rules", "penalties", "sampler"].map(shipped);
    let guests = ["recorder", "force"].map(test_guest);
    Plugins::new(&[&own[..], &guests].concat())
}

fn engine(prefill_chunk: usize, script: fn(&[TokenId]) -> Vec<f32>) -> Handle {
    let info = ModelInfo {
        vocabulary_size: V,
        tokenizer_size: V,
        end_of_sequence: vec![1],
        context_length: 256,
    };
    let config = EngineConfig {
        prefill_chunk,
        ..EngineConfig::default()
    };
    let build = move || {
        Ok::<_, Infallible>(Box::new(ScriptedModel::new(V as usize, script)) as Box<dyn Model>)
    };
    spawn(config, info, build).unwrap().0
}

/// A chain that writes down every row it leaves to its sampler.
struct Watched {
    chain: Box<dyn Chain>,
    rows: Arc<Mutex<Vec<Vec<f32>>>>,
}

impl Chain for Watched {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.chain.plan(accepted)
    }

    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        let token = self.chain.finish(row);
        self.rows.lock().unwrap().push(row.values().to_vec());
        token
    }
}

struct Running {
    events: Receiver<Event>,
    rows: Arc<Mutex<Vec<Vec<f32>>>>,
}

fn info(prompt: &[TokenId], max_tokens: u32) -> SequenceInfo {
    SequenceInfo {
        prompt: prompt.to_vec(),
        max_tokens,
        end_ids: vec![],
    }
}

fn submit(engine: &Handle, info: &SequenceInfo, chain: Box<dyn Chain>) -> Running {
    let rows = Arc::new(Mutex::new(Vec::new()));
    let (events, receiver) = tokio::sync::mpsc::channel(EVENT_BUFFER);
    let submission = Submission {
        prompt: info.prompt.clone(),
        max_tokens: info.max_tokens,
        end_ids: info.end_ids.clone(),
        chain: Box::new(Watched {
            chain,
            rows: rows.clone(),
        }),
        logprobs: None,
        events,
    };
    engine.submit(submission).unwrap();
    Running {
        events: receiver,
        rows,
    }
}

impl Running {
    fn read(mut self) -> (Vec<TokenId>, Vec<Vec<f32>>, FinishReason) {
        let mut tokens = Vec::new();
        loop {
            match self.events.blocking_recv().unwrap() {
                Event::Tokens(more) => tokens.extend(more.iter().map(|token| token.id)),
                Event::Finished(reason) => {
                    let rows = std::mem::take(&mut *self.rows.lock().unwrap());
                    return (tokens, rows, reason);
                }
                Event::Cached(_) | Event::Drafted { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// 3 for even ids and −3 for odd ones, whatever came before.
fn constant(_: &[TokenId]) -> Vec<f32> {
    (0..V)
        .map(|id| if id % 2 == 0 { 3.0 } else { -3.0 })
        .collect()
}

/// That row where a repetition penalty of 1.5 has touched the ids of
/// `repeated`, and presence 0.5 with frequency 0.25 the ids of `generated`,
/// each of which came once: 3 / 1.5 = 2, −3 · 1.5 = −4.5, and 0.75 less.
fn penalised(repeated: &[TokenId], generated: &[TokenId]) -> Vec<f32> {
    (0..V)
        .map(|id| {
            let logit = match (repeated.contains(&id), id % 2 == 0) {
                (true, true) => 2.0,
                (true, false) => -4.5,
                (false, true) => 3.0,
                (false, false) => -3.0,
            };
            logit - if generated.contains(&id) { 0.75 } else { 0.0 }
        })
        .collect()
}

/// Engines exist whose history begins with one token of the prompt, with two,
/// or with all of it, depending on the path. Here it is the same on each:
/// presence and frequency count nothing before the first token, repetition sees
/// the last 20 tokens of prompt and completion, and the newest one counts.
#[test]
fn penalties_see_the_same_history_on_every_path() {
    let plugins = plugins();
    let params = json!({
        "repetition_penalty": 1.5, "repetition_context_size": 20,
        "presence_penalty": 0.5, "presence_context_size": 20,
        "frequency_penalty": 0.25, "frequency_context_size": 20,
    });
    let stages = [
        plugins.stage("penalties", params).unwrap(),
        plugins.stage("sampler", json!({"temperature": 0})).unwrap(),
    ];
    let range = |from: TokenId, to: TokenId| (from..to).collect::<Vec<_>>();
    // A prompt; then, for each position, what repetition sees and what was
    // generated before it. The best token is the lowest even id untouched.
    let cases = [
        (
            range(0, 30),
            [
                (range(10, 30), vec![]),
                ([range(11, 30), vec![0]].concat(), vec![0]),
                ([range(12, 30), vec![0, 2]].concat(), vec![0, 2]),
                ([range(13, 30), vec![0, 2, 4]].concat(), vec![0, 2, 4]),
            ],
        ),
        (
            vec![0],
            [
                (vec![0], vec![]),
                (vec![0, 2], vec![2]),
                (vec![0, 2, 4], vec![2, 4]),
                (vec![0, 2, 4, 6], vec![2, 4, 6]),
            ],
        ),
        (
            vec![5, 5],
            [
                (vec![5], vec![]),
                (vec![5, 0], vec![0]),
                (vec![5, 0, 2], vec![0, 2]),
                (vec![5, 0, 2, 4], vec![0, 2, 4]),
            ],
        ),
    ];
    let vocabulary = numbered_vocabulary(V, vec![1]);
    for chunk in [1, 2, 7, 256] {
        for n_rows in [1, 8] {
            let engine = engine(chunk, constant);
            for (prompt, positions) in &cases {
                let info = info(prompt, 4);
                let running: Vec<_> = (0..n_rows)
                    .map(|_| {
                        let chain = plugins.open(&vocabulary, &stages, &info, 0).unwrap();
                        submit(&engine, &info, chain)
                    })
                    .collect();
                for row in running {
                    let (_, rows, reason) = row.read();
                    assert_eq!(reason, FinishReason::Length);
                    let expected: Vec<_> = positions
                        .iter()
                        .map(|(repeated, generated)| penalised(repeated, generated))
                        .collect();
                    assert_eq!(rows, expected, "chunk {chunk}, {n_rows} rows, {prompt:?}");
                }
            }
        }
    }
}

/// Logits that a hash of the whole context mixes, so that one token missing,
/// doubled or of another row changes what follows.
fn mixed(context: &[TokenId]) -> Vec<f32> {
    let seed = context
        .iter()
        .fold(7u32, |h, &t| h.wrapping_mul(31).wrapping_add(t + 1));
    (0..V)
        .map(|id| (seed.wrapping_mul(2 * id + 1) >> 20) as f32 / 512.0 - 4.0)
        .collect()
}

/// A row of a batch in which every option differs.
fn options(i: u32) -> (Vec<TokenId>, Value, Value, i64) {
    let prompt = (0..=i * 5 % 23)
        .map(|k| 2 + (k * 7 + i) % (V - 2))
        .collect();
    let penalties = match i % 4 {
        0 => json!({}),
        1 => json!({"repetition_penalty": 1.3, "repetition_context_size": 3 + i}),
        2 => json!({"presence_penalty": 1.5, "presence_context_size": 4}),
        _ => json!({"frequency_penalty": -0.7, "repetition_penalty": 0.8}),
    };
    let sampler = match i % 3 {
        0 => json!({"temperature": 0}),
        1 => json!({"temperature": 0.9, "top_k": 5 + i}),
        _ => json!({"temperature": 1.2, "top_p": 0.8, "min_p": 0.02}),
    };
    (prompt, penalties, sampler, i64::from(i) - 3)
}

/// Rows with other options, in any order and company, some of which leave
/// early: each is what it is alone, and nobody inherits anything.
#[test]
fn a_row_in_any_company_is_what_it_is_alone() {
    let plugins = plugins();
    let vocabulary = numbered_vocabulary(V, vec![1]);
    let start = |engine: &Handle, i: u32| {
        let (prompt, penalties, sampler, seed) = options(i);
        let stages = [
            plugins
                .stage("rules", json!({"min_tokens": i % 5}))
                .unwrap(),
            plugins.stage("penalties", penalties).unwrap(),
            plugins.stage("sampler", sampler).unwrap(),
        ];
        let info = info(&prompt, 20);
        let chain = plugins.open(&vocabulary, &stages, &info, seed).unwrap();
        submit(engine, &info, chain)
    };
    let alone: Vec<_> = (0..12)
        .map(|i| start(&engine(256, mixed), i).read())
        .collect();
    assert!(alone.iter().all(|(tokens, ..)| tokens.len() == 20));
    for round in 0..6u32 {
        let engine = engine([256, 4, 1][round as usize % 3], mixed);
        let mut running = Vec::new();
        for k in 0..24u32 {
            let i = (k * 5 + round * 7) % 12;
            let mut row = start(&engine, i);
            if k % 4 == 3 {
                // Leaves as soon as it has begun.
                row.events.blocking_recv();
                drop(row);
            } else {
                running.push((i, row));
            }
        }
        for (i, row) in running {
            assert_eq!(row.read(), alone[i as usize], "round {round}, row {i}");
        }
    }
}

/// What a `recorder` of this chain was told, for each choice.
fn recorded(plugins: &Plugins, stages: &[StageRef], n: u32, chunk: usize) -> Vec<Value> {
    let vocabulary = numbered_vocabulary(V, vec![1]);
    let info = info(&[5, 6, 7, 8, 9], 40);
    let choices = Choices {
        n,
        seed: 9,
        explain: false,
    };
    let chains = plugins.runtime.open(&vocabulary, stages, &info, choices);
    let engine = engine(chunk, mixed);
    let mut running = Vec::new();
    for chain in chains.unwrap() {
        running.push(submit(&engine, &info, Box::new(chain)));
        // A neighbour that is cancelled while the others run.
        let other = plugins.stage("sampler", json!({"temperature": 1})).unwrap();
        let other = plugins.open(&vocabulary, &[other], &info, 1).unwrap();
        submit(&engine, &info, other).events.blocking_recv();
    }
    let report = |row: Running| {
        let (tokens, _, reason) = row.read();
        let FinishReason::PluginError(fault) = reason else {
            panic!("{reason:?}");
        };
        let start = fault.message.find('{').unwrap();
        let end = fault.message.rfind('}').unwrap();
        let mut report: Value = serde_json::from_str(&fault.message[start..=end]).unwrap();
        report["tokens"] = json!(tokens);
        report
    };
    running.into_iter().map(report).collect()
}

#[test]
fn every_choice_is_told_its_own_tokens_forced_ones_included() {
    let plugins = plugins();
    let recorder = plugins.stage("recorder", json!({"report_after": 12}));
    let recorder = recorder.unwrap();
    let force = plugins
        .stage("force", json!({"ids": [20, 21, 22]}))
        .unwrap();
    let sampler = plugins.stage("sampler", json!({"temperature": 1})).unwrap();
    for chunk in [1, 3, 256] {
        // Asked before the decision: once for each position.
        let stages = [recorder.clone(), force.clone(), sampler.clone()];
        let first = recorded(&plugins, &stages, 3, chunk);
        // Asked after it: not about forced positions, but told of them.
        let stages = [force.clone(), recorder.clone(), sampler.clone()];
        let second = recorded(&plugins, &stages, 3, chunk);
        for (calls_begin, reports) in [
            (json!([[], [20], [21], [22]]), &first),
            (json!([[20, 21, 22]]), &second),
        ] {
            for report in reports {
                assert_eq!(report["prompt"], json!([5, 6, 7, 8, 9]));
                let calls = report["accepted"].as_array().unwrap();
                let begin = calls_begin.as_array().unwrap();
                assert_eq!(&calls[..begin.len()], begin);
                assert!(
                    calls[begin.len()..]
                        .iter()
                        .all(|call| call.as_array().unwrap().len() == 1)
                );
                let told: Vec<_> = calls
                    .iter()
                    .flat_map(|call| call.as_array().unwrap().clone())
                    .collect();
                assert_eq!(json!(told), report["tokens"]);
                assert_eq!(told.len(), 12);
            }
            let tokens = |i: usize| &reports[i]["tokens"];
            assert_ne!(tokens(0), tokens(1), "choices draw for themselves");
            assert_ne!(tokens(1), tokens(2));
        }
        for (a, b) in first.iter().zip(&second) {
            assert_eq!(a["tokens"], b["tokens"], "a stage that only listens");
        }
    }
}
