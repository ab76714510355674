//! Dialects through the running server: the numbers of `vectors.json`, cases
//! X45 to X57, whose ids are two higher here, since the first two tokens of
//! the vocabulary are special. What the penalties leave is read from the
//! processed logprobs of a greedy answer; what a sampler keeps, from the
//! tokens of many draws.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sluice::engine::TokenId;

use super::server::{Server, Setup};

const BANNED: f32 = f32::NEG_INFINITY;
const COMPLETIONS: &str = "/v1/completions";

/// The first token of the prompt says which row follows.
fn script(context: &[TokenId]) -> Vec<f32> {
    let logits: &[f32] = match context[0] {
        2 => &[4.0; 4],
        3 => &[3.0, 2.5, 2.0, 0.0, -1.0],
        4 => &[5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0],
        _ => &[-0.105_361, -std::f32::consts::LN_10],
    };
    [&[BANNED, BANNED], logits].concat()
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        Server::start(&Setup {
            script,
            ..Setup::default()
        })
    })
}

async fn post(body: Value) -> Value {
    let answer = server().post(COMPLETIONS, &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{body}\n{}", answer.text);
    answer.json()
}

fn with(mut body: Value, fields: &Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// The third token's processed logprobs, after the prompt `0 1` and the
/// generated tokens `1 2` of the vectors, as logits whose first is 4.
async fn penalised(fields: Value) -> Vec<f64> {
    let body = json!({
        "prompt": [2, 3], "max_tokens": 3, "temperature": 0, "logprobs": 4,
        "logprobs_mode": "processed",
        "processors": [{"plugin": "force", "params": {"ids": [3, 4]}}],
    });
    let answer = post(with(body, &fields)).await;
    let listed = answer["choices"][0]["logprobs"]["top_logprobs"][2].clone();
    let of = |piece: &str| listed[piece].as_f64().unwrap();
    ["a", "b", "c", " "]
        .iter()
        .map(|piece| of(piece) - of(" ") + 4.0)
        .collect()
}

#[tokio::test]
async fn the_penalties_of_a_dialect_look_where_it_does() {
    let mlx_lm = json!({
        "dialect": "mlx-lm", "repetition_penalty": 2.0, "repetition_context_size": 2,
        "presence_penalty": 1.0, "presence_context_size": 2, "frequency_penalty": 0.5,
        "frequency_context_size": 3,
    });
    let llama = |last_n: i64| {
        json!({
            "dialect": "llama.cpp", "repeat_penalty": 2.0, "repeat_last_n": last_n,
            "presence_penalty": 1.0, "frequency_penalty": 0.5,
        })
    };
    for (fields, expected) in [
        (mlx_lm, [4.0, 0.0, 0.5, 4.0]),
        (llama(2), [4.0, 0.5, 0.5, 4.0]),
        (llama(-1), [0.5, 0.0, 0.5, 4.0]),
        (llama(0), [4.0, 4.0, 4.0, 4.0]),
    ] {
        let found = penalised(fields.clone()).await;
        let near = found
            .iter()
            .zip(expected)
            .all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(near, "{fields}: {found:?}, expected {expected:?}");
    }
}

/// How often each piece comes first in many draws.
async fn drawn(prompt: TokenId, fields: &Value) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for seed in 0..20 {
        let body = json!({"prompt": [prompt], "max_tokens": 1, "n": 64, "seed": seed});
        let answer = post(with(body, fields)).await;
        for choice in answer["choices"].as_array().unwrap() {
            let text = choice["text"].as_str().unwrap().to_owned();
            *counts.entry(text).or_default() += 1;
        }
    }
    counts
}

#[tokio::test]
async fn the_sampler_of_a_dialect_keeps_what_it_keeps_and_draws_at_its_temperature() {
    for (prompt, fields, kept, best) in [
        // X45: the cut is made at T = 1, then 1.5 against 1.25: 0.562177.
        (
            3,
            json!({"dialect": "llama.cpp", "temperature": 2.0, "top_k": 4, "top_p": 0.8, "min_p": 0.5}),
            vec!["a", "b"],
            0.562_177,
        ),
        // X46, its defaults: 6.25, 5, 3.75, whose best has 0.730679.
        (4, json!({"dialect": "llama.cpp"}), vec![" ", "a", "b"], 0.0),
        // X49: top_p 0 is off; 0.9 against 0.1.
        (
            7,
            json!({"dialect": "mlx-lm", "temperature": 1.0, "top_p": 0.0}),
            vec!["a", "b"],
            0.9,
        ),
        // In the default dialect the same field keeps the best alone.
        (7, json!({"top_p": 0.0}), vec!["a"], 1.0),
        // mlx-lm is greedy unless it is told otherwise.
        (7, json!({"dialect": "mlx-lm"}), vec!["a"], 1.0),
    ] {
        let counts = drawn(prompt, &fields).await;
        let pieces: Vec<_> = counts.keys().map(String::as_str).collect();
        let expected: Vec<_> = if prompt == 4 {
            vec!["a", "b", "c"]
        } else {
            kept
        };
        assert_eq!(pieces, expected, "{fields}");
        let best = if prompt == 4 { 0.730_679 } else { best };
        let share = f64::from(counts["a"]) / 1280.0;
        // Four standard deviations of 1,280 draws.
        let error = 4.0 * (best * (1.0 - best) / 1280.0_f64).sqrt();
        assert!(
            (share - best).abs() <= error,
            "{fields}: {share}, expected {best}"
        );
    }
}

#[tokio::test]
async fn each_dialect_is_shown_as_the_chain_it_stands_for() {
    let answer = server().get("/v1/dialects").await.json();
    let shown = answer["data"].as_array().unwrap();
    let names: Vec<_> = shown.iter().map(|dialect| &dialect["name"]).collect();
    assert_eq!(names, ["openai", "vllm", "mlx-lm", "llama.cpp", "hf"]);
    // What is shown is a chain that can be sent, and says the same.
    for dialect in shown {
        let chain = dialect["chain"].as_array().unwrap();
        let chain: Vec<_> = chain
            .iter()
            .filter(|stage| stage["plugin"] != "grammar")
            .collect();
        let fields = json!({"prompt": [3], "max_tokens": 8, "seed": 5});
        let by_chain = post(with(fields.clone(), &json!({"chain": chain}))).await;
        let by_name = post(with(fields, &json!({"dialect": dialect["name"]}))).await;
        assert_eq!(by_chain["choices"], by_name["choices"], "{dialect}");
    }
}

#[tokio::test]
async fn a_stage_beside_one_that_makes_it_void_is_refused() {
    for (fields, param) in [
        (json!({"mirostat": 1}), "mirostat"),
        (json!({"mirostat": 2, "top_k": 5}), "top_k"),
        (json!({"mirostat_mode": 2, "typ_p": 0.5}), "typ_p"),
        (
            json!({"mirostat": 2, "adaptive_target": 0.3}),
            "adaptive_target",
        ),
        (json!({"order": ["top_k"], "top_p": 0.5}), "top_p"),
        (json!({"order": ["top_k", "top_k"]}), "order"),
        (json!({"order": ["top_q"]}), "order"),
        (json!({"samplers": ["penalties", "top_k"]}), "samplers"),
        (json!({"dry_multiplier": 0, "dry_base": 0.5}), "dry_base"),
        (json!({"mirostat_tau": -1}), "mirostat_tau"),
        (
            json!({"dialect": "hf", "chain": [{"plugin": "sampler"}]}),
            "dialect",
        ),
        (
            json!({"guided_regex": "a", "chain": [{"plugin": "sampler"}]}),
            "guided_regex",
        ),
        (json!({"top_n_sigma": 101}), "top_n_sigma"),
        (
            json!({"dialect": "llama.cpp", "repeat_last_n": -2}),
            "repeat_last_n",
        ),
        (
            json!({"dialect": "llama.cpp", "dry_multiplier": 0.8, "dry_penalty_last_n": 1.5}),
            "dry_penalty_last_n",
        ),
        (json!({"typical_p": 0}), "typical_p"),
        (json!({"epsilon_cutoff": 1}), "epsilon_cutoff"),
        (json!({"smoothing_curve": 3.5}), "smoothing_curve"),
        (json!({"adaptive_decay": 1}), "adaptive_decay"),
    ] {
        let body = with(json!({"prompt": [3], "max_tokens": 1}), &fields);
        let answer = server().post(COMPLETIONS, &body).await;
        assert_eq!(
            answer.status,
            StatusCode::BAD_REQUEST,
            "{fields}: {}",
            answer.text
        );
        assert_eq!(
            answer.json()["error"]["param"],
            param,
            "{fields}: {}",
            answer.text
        );
    }
    // The order at fault is the dialect's: no field of the request is.
    let body = json!({"prompt": [3], "dialect": "vllm", "xtc_probability": 0.5});
    let answer = server().post(COMPLETIONS, &body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    let message = answer.json()["error"]["message"].to_string();
    assert!(message.contains("`xtc`"), "{message}");
    // Off values beside it are fine: clients send everything they know.
    for fields in [
        json!({"mirostat": 2, "top_k": 0, "top_p": 1, "min_p": 0, "xtc_probability": 0}),
        json!({"mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "top_k": 5}),
        json!({"adaptive_target": -1, "adaptive_decay": 0.9, "dry_multiplier": 0, "dry_base": 1.75}),
        json!({"adaptive_target": 0.4, "top_k": 3, "min_p": 0.05}),
        json!({"dialect": "llama.cpp", "mirostat": 2}),
        json!({"dialect": "llama.cpp", "dry_multiplier": 0.8, "dry_penalty_last_n": -1}),
    ] {
        post(with(json!({"prompt": [4], "max_tokens": 4}), &fields)).await;
    }
}
