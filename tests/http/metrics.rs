//! The figures that Prometheus asks for.

use axum::body::Body;
use axum::http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;

use super::server::{Server, Setup};

const COMPLETIONS: &str = "/v1/completions";

/// The figure of this name, labels included.
fn figure(text: &str, name: &str) -> Option<f64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn what_was_answered_is_counted() {
    let server = Server::start(&Setup::default());
    // Three tokens, then the end: four positions.
    for stream in [false, true] {
        let body = json!({"prompt": "abc\n", "temperature": 0, "stream": stream});
        assert_eq!(server.post(COMPLETIONS, &body).await.status, StatusCode::OK);
    }
    let cut = json!({"prompt": "ab\n", "max_tokens": 1, "n": 2});
    assert_eq!(server.post(COMPLETIONS, &cut).await.status, StatusCode::OK);
    let fault = json!({"prompt": "abc\n", "processors": [
        {"plugin": "misbehave-token", "params": {"fault": "trap", "after": 0}},
    ]});
    let answer = server.post(COMPLETIONS, &fault).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    let refused = server.post(COMPLETIONS, &json!({})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    for path in ["/nothing/1", "/nothing/2", "/v1/models/a"] {
        assert_eq!(server.get(path).await.status, StatusCode::NOT_FOUND);
    }
    let hung_up = json!({"prompt": "a", "stream": true}).to_string();
    let mut response = server
        .open(Method::POST, COMPLETIONS, Body::from(hung_up))
        .await;
    response.body_mut().frame().await.unwrap().unwrap();
    drop(response);
    server.idle().await;

    let mut text = server.get("/metrics").await.text;
    // The last one is noticed when its connection is.
    while figure(&text, "sluice_choices_total{reason=\"cancelled\"}").is_none()
        && figure(&text, "sluice_choices_total{reason=\"length\"}") == Some(2.0)
    {
        text = server.get("/metrics").await.text;
    }
    for (name, expected) in [
        (
            "sluice_requests_total{route=\"/v1/completions\",code=\"200\"}",
            4.0,
        ),
        (
            "sluice_requests_total{route=\"/v1/completions\",code=\"400\"}",
            1.0,
        ),
        (
            "sluice_requests_total{route=\"/v1/completions\",code=\"422\"}",
            1.0,
        ),
        (
            "sluice_requests_total{route=\"/v1/models/{*id}\",code=\"404\"}",
            1.0,
        ),
        ("sluice_requests_total{route=\"none\",code=\"404\"}", 2.0),
        ("sluice_choices_total{reason=\"stop\"}", 2.0),
        ("sluice_choices_total{reason=\"plugin_error\"}", 1.0),
        (
            "sluice_plugin_faults_total{plugin=\"misbehave-token\"}",
            1.0,
        ),
        ("sluice_plugin_faults_total{plugin=\"sampler\"}", 0.0),
        ("sluice_sequences_running", 0.0),
        ("sluice_sequences_waiting", 0.0),
        ("sluice_cache_claimed_tokens", 0.0),
    ] {
        assert_eq!(figure(&text, name), Some(expected), "{name}\n{text}");
    }
    let at_least = |name: &str, least: f64| {
        let found = figure(&text, name);
        assert!(
            found.is_some_and(|found| found >= least),
            "{name}: {found:?}"
        );
    };
    // Two of three tokens, two of one; what the others had before their ends
    // comes on top.
    at_least("sluice_completion_tokens_total", 8.0);
    at_least("sluice_prompt_tokens_total", 4.0 + 4.0 + 3.0 + 4.0 + 1.0);
    at_least(
        "sluice_plugin_calls_total{plugin=\"sampler\"}",
        4.0 + 4.0 + 2.0,
    );
    at_least("sluice_time_to_first_token_seconds_count", 4.0);
    at_least("sluice_inter_token_seconds_count", 4.0);
    at_least("sluice_steps_total", 8.0);
    at_least("sluice_cache_kept_tokens", 0.0);
    let step = figure(&text, "sluice_step_seconds_total").unwrap();
    let forward = figure(&text, "sluice_forward_seconds_total").unwrap();
    let chain = figure(&text, "sluice_chain_seconds_total").unwrap();
    let plan = figure(&text, "sluice_plan_seconds_total").unwrap();
    assert!(plan <= chain && forward + chain <= step, "{text}");
    assert!(text.ends_with("# EOF\n"));
}
