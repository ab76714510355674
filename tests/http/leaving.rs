//! Clients that leave at any moment: nobody else notices, nothing of them is
//! left, and what they asked for can be asked for again.

use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use futures_util::future::join_all;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sluice::engine::{EngineConfig, TokenId};

use super::server::{Server, Setup};

const COMPLETIONS: &str = "/v1/completions";

/// Logits that depend on every token of the context, ends excluded.
fn script(context: &[TokenId]) -> Vec<f32> {
    let mix = |h: u32, &id: &TokenId| h.wrapping_mul(37).wrapping_add(id + 1);
    let hash = context.iter().fold(3, mix);
    let logit = |id: u32| match id {
        2..=5 | 7 => (hash.wrapping_mul(2 * id + 1) >> 24) as f32 / 64.0,
        _ => f32::NEG_INFINITY,
    };
    (0..12).map(logit).collect()
}

fn server(max_batch: usize, pace: Duration) -> Server {
    Server::start(&Setup {
        script,
        engine: EngineConfig {
            max_batch,
            prefill_chunk: 16,
            ..EngineConfig::default()
        },
        context_length: 4096,
        pace,
        ..Setup::default()
    })
}

fn body(prompt: &str, fields: &Value) -> Value {
    let mut body = json!({"prompt": prompt, "temperature": 0});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// Sends a request, reads so many frames of its answer, and leaves.
async fn leave(server: &Server, body: &Value, frames: usize) {
    let mut answer = server
        .open(Method::POST, COMPLETIONS, Body::from(body.to_string()))
        .await;
    for _ in 0..frames {
        if answer.body_mut().frame().await.is_none() {
            return;
        }
    }
}

/// The text of an answer that is complete.
async fn text(server: &Server, body: &Value) -> String {
    let answer = server.post(COMPLETIONS, body).await.json();
    let text = answer["choices"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{body}: {answer}"))
        .to_owned()
}

/// While they wait, while their prompt is read, between tokens, at the last.
#[tokio::test]
async fn clients_that_leave_at_random_moments_leave_room() {
    let server = server(4, Duration::from_micros(100));
    let mut random = 7_u32;
    let mut next = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % below
    };
    for _ in 0..10 {
        let clients = (0..10).map(|_| {
            let prompt = "abcd".repeat(1 + 100 * next(2) as usize);
            let stream = next(3) > 0;
            let length = [json!(null), json!(1), json!(5)][next(3) as usize].clone();
            let fields = json!({"stream": stream, "max_tokens": length, "n": 1 + next(2)});
            let (frames, pause) = (
                next(6) as usize,
                Duration::from_micros(u64::from(next(4_000))),
            );
            let (server, body) = (&server, body(&prompt, &fields));
            async move {
                // One that is not streamed is left while it is awaited.
                let leaving = leave(server, &body, frames);
                if stream {
                    leaving.await;
                } else {
                    let _ = tokio::time::timeout(pause, leaving).await;
                }
            }
        });
        join_all(clients.collect::<Vec<_>>()).await;
    }
    server.idle().await;
    let last = body("ab", &json!({"max_tokens": 8}));
    let answers = join_all((0..4).map(|_| text(&server, &last))).await;
    assert!(
        answers
            .iter()
            .all(|answer| answer.len() == 8 && *answer == answers[0])
    );
    server.idle().await;
    assert_eq!(server.service.engine.stats().claimed_tokens, 0);
}

#[tokio::test]
async fn what_a_client_left_is_answered_again_as_by_a_new_server() {
    let fields = json!({"max_tokens": 40, "seed": 5, "temperature": 1});
    let asked = body(&"abcd".repeat(20), &fields);
    let cold = text(&server(4, Duration::ZERO), &asked).await;
    let server = server(4, Duration::from_micros(100));
    let mut streamed = asked.clone();
    streamed["stream"] = true.into();
    for frames in [5, 1, 12, 0] {
        leave(&server, &streamed, frames).await;
        assert_eq!(text(&server, &asked).await, cold, "left after {frames}");
    }
}

#[tokio::test]
async fn choices_of_a_client_that_left_leave_together_each_time() {
    let server = server(4, Duration::ZERO);
    let asked = body("abcd", &json!({"n": 4, "stream": true, "temperature": 1}));
    for _ in 0..500 {
        leave(&server, &asked, 1).await;
    }
    server.idle().await;
    let stats = server.service.engine.stats();
    assert_eq!(
        (stats.running, stats.waiting, stats.claimed_tokens),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn one_that_leaves_a_full_batch_changes_no_other_answer() {
    let server = server(8, Duration::ZERO);
    let asked = |k: usize| {
        let prompt = format!("{}{}", "ab".repeat(k), "cd".repeat(8 - k));
        body(
            &prompt,
            &json!({"max_tokens": 50 + k, "frequency_penalty": 0.1}),
        )
    };
    let mut alone = Vec::new();
    for k in 0..8 {
        alone.push(text(&server, &asked(k)).await);
    }
    for step in 1..=50 {
        let mut leaving = asked(2);
        leaving["stream"] = true.into();
        let others = (0..8).filter(|k| *k != 2).map(|k| {
            let (server, alone, asked) = (&server, &alone[k], asked(k));
            async move { assert_eq!(text(server, &asked).await, *alone, "{k}, step {step}") }
        });
        tokio::join!(leave(&server, &leaving, step), join_all(others));
    }
}
