//! What is answered, alone and in company.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::in_repository;
use crate::server::{Server, text};

pub fn france() -> Value {
    json!({
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
    })
}

#[tokio::test]
async fn the_capital_of_france_plain_and_streamed() {
    let server = Server::shared();
    let (status, answer) = server.post("/v1/chat/completions", &france()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(
        choice["message"]["content"],
        "The capital of France is Paris."
    );
    assert_eq!(choice["finish_reason"], "stop");
    let numbers = ["prompt_tokens", "completion_tokens", "total_tokens"];
    let counted = |usage: &Value| numbers.map(|name| usage[name].as_u64().unwrap());
    assert_eq!(counted(&answer["usage"]), [37, 7, 44]);

    let mut body = france();
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let events = server.stream("/v1/chat/completions", &body).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let content: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(content, "The capital of France is Paris.");
    let [.., finish, usage] = &chunks[..] else {
        panic!("{chunks:?}")
    };
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!(finish["usage"], Value::Null);
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(counted(&usage["usage"]), [37, 7, 44]);
}

#[tokio::test]
async fn a_prompt_that_is_in_the_cache_changes_no_answer() {
    let server = Server::shared();
    let story = "In a harbour town at the edge of the cold sea there lived a keeper of clocks. ";
    let mut body = json!({
        "prompt": story.repeat(12), "max_tokens": 24, "temperature": 1, "seed": 5,
        "logprobs": 2, "ignore_eos": true, "repetition_penalty": 1.2,
    });
    let first = server.complete(&body).await;
    let cached = |answer: &Value| {
        let details = &answer["usage"]["prompt_tokens_details"];
        details["cached_tokens"].as_u64().unwrap()
    };
    let n_prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(cached(&first), 0);
    let again = server.complete(&body).await;
    assert_eq!(cached(&again), n_prompt - 1);
    assert_eq!(again["choices"], first["choices"]);
    // The next turn: what was said, and more. The reply's last token was not
    // computed.
    body["prompt"] = (story.repeat(12) + text(&first) + " And then").into();
    let next = server.complete(&body).await;
    assert!(cached(&next) >= n_prompt - 1, "{}", next["usage"]);
    // Four choices have what they have one by one.
    body["prompt"] = (story.repeat(8) + "Once").into();
    body["n"] = 4.into();
    let together = server.complete(&body).await;
    let once_more = server.complete(&body).await;
    assert_eq!(together["choices"], once_more["choices"]);
    assert_eq!(together["choices"].as_array().unwrap().len(), 4);
}

/// Sixteen requests that differ in everything a request can differ in.
fn mixed() -> Vec<Value> {
    let prompts = [
        "Once upon a time",
        "The three primary colours are",
        "def fibonacci(n):\n",
        "In 1969, humans first walked on the Moon. ",
    ];
    let temperatures = [0.0, 0.7, 1.0, 1.3];
    (0..16u64)
        .map(|i| {
            let mut body = json!({
                "prompt": prompts[i as usize % 4].repeat(1 + i as usize * 3 % 11),
                "max_tokens": 12 + i * 5 % 17,
                "seed": i as i64 - 3,
                "temperature": temperatures[i as usize / 2 % 4],
            });
            match i % 8 {
                0 => body["presence_penalty"] = 1.1.into(),
                1 => body["top_p"] = 0.9.into(),
                2 => {
                    body["repetition_penalty"] = 1.2.into();
                    body["logit_bias"] = json!({"28": -5, "30": 2.5});
                }
                3 => {
                    body["chain"] = json!([{"plugin": "sampler", "params": {"temperature": 0.9, "min_p": 0.05}}]);
                    body.as_object_mut().unwrap().remove("temperature");
                }
                4 => {
                    body["top_k"] = 30.into();
                    body["xtc_probability"] = 0.5.into();
                    body["frequency_penalty"] = 0.3.into();
                }
                5 => {
                    body["mirostat"] = 2.into();
                    body["n"] = 2.into();
                }
                6 => {
                    body["adaptive_target"] = 0.3.into();
                    body["min_p"] = 0.05.into();
                    body["logprobs"] = 3.into();
                }
                _ => {
                    body["dialect"] = "llama.cpp".into();
                    body["dry_multiplier"] = 0.8.into();
                    body["typical_p"] = 0.9.into();
                    body["dynatemp_range"] = 0.3.into();
                    body["echo"] = true.into();
                    body["logprobs"] = 1.into();
                }
            }
            body
        })
        .collect()
}

#[tokio::test]
async fn sixteen_mixed_requests_get_what_they_get_alone() {
    // Alone, each computes its prompt itself; together, in the last rounds, it
    // finds the prompt in the cache.
    let computing = Server::start(&["--prefix-cache-mib", "0"]);
    let requests = mixed();
    let mut solo = Vec::new();
    for body in &requests {
        solo.push(computing.complete(body).await);
    }
    for (round, server) in (0u64..).zip([&computing, Server::shared(), Server::shared()]) {
        let together = requests.iter().zip(0u64..).map(|(body, i)| async move {
            let delay = (i * 37 + round * 101) % 160;
            tokio::time::sleep(Duration::from_millis(delay)).await;
            server.complete(body).await
        });
        let together = futures_util::future::join_all(together).await;
        for ((body, solo), answer) in requests.iter().zip(&solo).zip(&together) {
            assert_eq!(answer["choices"], solo["choices"], "round {round}: {body}");
            let total = |answer: &Value| answer["usage"]["total_tokens"].clone();
            assert_eq!(total(answer), total(solo), "round {round}: {body}");
        }
    }
}

#[tokio::test]
async fn a_seed_decides_and_its_absence_does_not() {
    let server = Server::shared();
    let body = |seed: Value| json!({"prompt": "My favourite", "max_tokens": 25, "seed": seed});
    let mut texts = Vec::new();
    for seed in [0, 1, -1] {
        let first = server.complete(&body(seed.into())).await;
        let again = server.complete(&body(seed.into())).await;
        assert_eq!(first["choices"], again["choices"], "seed {seed}");
        texts.push(text(&first).to_owned());
    }
    texts.sort();
    texts.dedup();
    assert!(texts.len() > 1, "every seed gives {texts:?}");
    let one = server.complete(&body(Value::Null)).await;
    let other = server.complete(&body(Value::Null)).await;
    assert_ne!(text(&one), text(&other), "without a seed");
    let before = server.complete(&body(1.into())).await;
    let restarted = Server::start(&[]);
    let after = restarted.complete(&body(1.into())).await;
    assert_eq!(before["choices"], after["choices"], "after a restart");
}

/// The logprobs that mlx-lm gives the same tokens (`parity/fixture.json`), for
/// tokens of a prompt and for sampled ones.
#[tokio::test]
async fn logprobs_are_those_of_mlx_lm() {
    let fixture = std::fs::File::open(in_repository("tests/parity/fixture.json")).unwrap();
    let fixture: Value = serde_json::from_reader(std::io::BufReader::new(fixture)).unwrap();
    let server = Server::shared();
    for case in &fixture["cases"].as_array().unwrap()[..6] {
        let ids = |name: &str| case[name].as_array().unwrap().clone();
        let (prompt, generated) = (ids("prompt_ids"), ids("generated_ids"));
        let n = generated.len().min(16);
        let expected: Vec<Vec<f64>> = (0..n)
            .map(|i| {
                let sum = case["log_sum_exp"][i].as_f64().unwrap();
                let top = case["top_logits"][i].as_array().unwrap();
                top.iter().map(|l| l.as_f64().unwrap() - sum).collect()
            })
            .collect();
        let check = |logprobs: &Value, from: usize| {
            for (i, expected) in expected.iter().enumerate() {
                let own = logprobs["token_logprobs"][from + i].as_f64().unwrap();
                assert!((own - expected[0]).abs() < 5e-4, "{i}: {own}, {expected:?}");
                let listed = logprobs["top_logprobs"][from + i].as_object().unwrap();
                let listed: Vec<_> = listed.values().map(|l| l.as_f64().unwrap()).collect();
                assert_eq!(listed.len(), 5);
                let near = listed
                    .iter()
                    .zip(expected)
                    .all(|(a, b)| (a - b).abs() < 5e-4);
                assert!(near, "{i}: {listed:?}, {expected:?}");
            }
        };
        let text = [&prompt[..], &generated[..n]].concat();
        let body = json!({"prompt": text, "max_tokens": 0, "echo": true, "logprobs": 5});
        let answer = server.complete(&body).await;
        check(&answer["choices"][0]["logprobs"], prompt.len());
        let body = json!({"prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": 5});
        let answer = server.complete(&body).await;
        check(&answer["choices"][0]["logprobs"], 0);
    }
}
