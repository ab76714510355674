//! A hundred JSON Schemas on the default model at temperature 1: what ends on
//! its own fits its schema, what does not says so.
#![allow(clippy::expect_used, clippy::unwrap_used)]

#[path = "support/server.rs"]
mod server;

use axum::http::StatusCode;
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use server::Server;
use std::sync::OnceLock;

/// Requests that run at once.
const BATCH: usize = 16;
const MAX_TOKENS: u32 = 512;
/// How many must end on their own: a small model that was not tuned for JSON
/// sometimes writes without end where a schema lets it.
const MIN_COMPLETE: usize = 80;

#[derive(Deserialize)]
struct Case {
    name: String,
    ask: String,
    schema: Value,
}

/// A server with deadlines for a busy machine: they are not what is tested.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let deadlines = ["--plugin-call-ms", "2000", "--plugin-open-ms", "10000"];
        Server::start(&deadlines)
    })
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("schemas.json")).unwrap()
}

/// Whether the text is complete; panics if it then does not fit.
async fn is_complete(server: &Server, seed: usize, case: &Case) -> bool {
    let Case { name, ask, schema } = case;
    let body = json!({
        "messages": [
            {"role": "system", "content": "You answer in JSON."},
            {"role": "user", "content": ask},
        ],
        "temperature": 1,
        "seed": seed,
        "max_tokens": MAX_TOKENS,
        "processors": [{"plugin": "grammar", "params": {"json_schema": schema}}],
    });
    let (status, answer) = server.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::OK, "{name}: {answer}");
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    if choice["finish_reason"] == "length" {
        assert_eq!(answer["usage"]["completion_tokens"], MAX_TOKENS, "{name}");
        println!("{name}: cut off");
        return false;
    }
    assert_eq!(choice["finish_reason"], "stop", "{name}: {answer}");
    println!("{name}: {text}");
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
    let validator = jsonschema::options()
        .should_validate_formats(true)
        .build(schema)
        .unwrap();
    if let Err(error) = validator.validate(&value) {
        panic!("{name}: {error}\n{text}");
    }
    true
}

#[tokio::test]
async fn what_is_complete_fits_its_schema() {
    let server = server();
    let cases = cases();
    assert_eq!(cases.len(), 100);
    let complete: Vec<bool> = stream::iter(cases.iter().enumerate())
        .map(|(seed, case)| is_complete(server, seed, case))
        .buffer_unordered(BATCH)
        .collect()
        .await;
    let n_complete = complete.into_iter().filter(|&complete| complete).count();
    println!("{n_complete} of {} complete", cases.len());
    assert!(n_complete >= MIN_COMPLETE, "{n_complete} are complete");
}

#[tokio::test]
async fn a_text_that_is_cut_off_says_length() {
    let body = json!({
        "prompt": "1, 2, 3",
        "seed": 1,
        "max_tokens": 12,
        "processors": [{"plugin": "grammar", "params": {"json_schema": {
            "type": "array", "items": {"type": "integer"}, "minItems": 50,
        }}}],
    });
    let answer = server().complete(&body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 12);
}

#[tokio::test]
async fn a_schema_that_cannot_be_honoured_is_refused_before_anything_runs() {
    for (schema, keyword) in [
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            "`oneOf`",
        ),
        (json!({"type": "string", "pattern": "a(?=b)"}), "`pattern`"),
        (
            json!({"type": "array", "uniqueItems": true}),
            "`uniqueItems`",
        ),
        (json!({"not": {"type": "string"}}), "`not`"),
        (json!({"if": true, "then": false}), "`if`"),
        (json!({"type": "string", "format": "phone"}), "`format`"),
    ] {
        let body = json!({
            "prompt": "x",
            "processors": [{"plugin": "grammar", "params": {"json_schema": schema}}],
        });
        let (status, answer) = server().post("/v1/completions", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(keyword), "{message}");
    }
}
