//! The figures that Prometheus asks for.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use sluice::http::RequestLimits;

use super::server::{Server, Setup, component};

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
    at_least("sluice_step_seconds_count", 8.0);
    at_least("sluice_queue_seconds_count", 6.0);
    at_least("sluice_cache_kept_tokens", 0.0);
    let value = |name: &str| figure(&text, name).unwrap_or_else(|| panic!("{name}\n{text}"));
    let phases: f64 = ["forward", "plan", "chain", "sample"]
        .map(|phase| {
            let name = format!("sluice_step_phase_seconds_sum{{phase=\"{phase}\"}}");
            assert!(value(&name) > 0.0, "{name}");
            value(&name)
        })
        .iter()
        .sum();
    assert!(phases <= value("sluice_step_seconds_sum"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

/// One step for each prompt, since nothing else runs.
#[tokio::test]
async fn steps_say_how_many_sequences_and_rows_they_had() {
    let server = Server::start(&Setup::default());
    // The prompt with its first token; then two steps of one row.
    let body = json!({"prompt": "aaaaa", "max_tokens": 3, "temperature": 0});
    assert_eq!(server.post(COMPLETIONS, &body).await.status, StatusCode::OK);
    server.idle().await;
    let text = server.get("/metrics").await.text;
    for (name, expected) in [
        ("sluice_step_seconds_count", 3.0),
        ("sluice_batch_sequences_sum", 3.0),
        ("sluice_batch_sequences_bucket{le=\"0.0\"}", 0.0),
        ("sluice_batch_sequences_bucket{le=\"1.0\"}", 3.0),
        ("sluice_batch_rows_sum{kind=\"prompt\"}", 5.0),
        ("sluice_batch_rows_bucket{le=\"4.0\",kind=\"prompt\"}", 2.0),
        ("sluice_batch_rows_bucket{le=\"8.0\",kind=\"prompt\"}", 3.0),
        ("sluice_batch_rows_sum{kind=\"decode\"}", 2.0),
        ("sluice_batch_rows_bucket{le=\"0.0\",kind=\"decode\"}", 1.0),
        ("sluice_batch_rows_bucket{le=\"+Inf\",kind=\"decode\"}", 3.0),
        ("sluice_queue_seconds_count", 1.0),
        ("sluice_inter_token_seconds_count", 2.0),
        ("sluice_plugin_calls_total{plugin=\"sampler\"}", 3.0),
        ("sluice_cache_limit_tokens", 131_072.0),
        ("sluice_sequences_waiting_limit", 256.0),
    ] {
        assert_eq!(figure(&text, name), Some(expected), "{name}\n{text}");
    }
}

#[tokio::test]
async fn a_plugin_has_memory_while_it_runs_and_no_series_once_it_is_removed() {
    let server = Server::start(&Setup {
        pace: Duration::from_millis(2),
        ..Setup::default()
    });
    let body = json!({"prompt": "a", "max_tokens": 60, "stream": true,
        "processors": [{"plugin": "counter"}]});
    let mut response = server
        .open(Method::POST, COMPLETIONS, Body::from(body.to_string()))
        .await;
    response.body_mut().frame().await.unwrap().unwrap();
    let memory = "sluice_plugin_memory_bytes{plugin=\"counter\"}";
    let text = server.get("/metrics").await.text;
    let running = figure(&text, memory).unwrap();
    let of_all = figure(&text, "sluice_instances_memory_bytes").unwrap();
    // A guest has a page of 64 KiB at least, and shipped stages run too.
    assert!(running >= 65_536.0 && of_all > running, "{text}");
    assert!(figure(&text, "sluice_plugin_memory_bytes{plugin=\"sampler\"}").unwrap() >= 65_536.0);
    drop(response);
    server.idle().await;
    // Instances are freed on threads of their own.
    let freed = async {
        while figure(&server.get("/metrics").await.text, memory) != Some(0.0) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let freed = tokio::time::timeout(Duration::from_mins(1), freed).await;
    freed.expect("the memory of instances was not freed");
    let removed = server
        .send(Method::DELETE, "/v1/plugins/counter", Body::empty())
        .await;
    assert_eq!(removed.status, StatusCode::OK, "{}", removed.text);
    let text = server.get("/metrics").await.text;
    assert!(!text.contains("plugin=\"counter\""), "{text}");
}

/// Name, type, labels and help of each metric, as a line of the table.
fn rows_of(exposition: &str) -> Vec<String> {
    let mut rows = Vec::new();
    for line in exposition.lines() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' '))
        else {
            continue;
        };
        let of_it = |prefix: &str| exposition.lines().find_map(|l| l.strip_prefix(prefix));
        let kind = of_it(&format!("# TYPE {name} ")).unwrap();
        let samples = exposition.lines().filter(|l| !l.starts_with('#'));
        let labels = samples
            .filter_map(|sample| {
                let (name_of_sample, rest) = sample.strip_prefix(name)?.split_once('{')?;
                ["", "_total", "_bucket", "_sum", "_count"]
                    .contains(&name_of_sample)
                    .then_some(rest)
            })
            .map(|labels| {
                let names = labels.split('"').step_by(2);
                let names = names.filter_map(|name| name.trim_start_matches(',').strip_suffix('='));
                let names: Vec<_> = names.filter(|name| *name != "le").collect();
                names.join(", ")
            })
            .max();
        let labels = labels.filter(|labels| !labels.is_empty());
        let labels = labels.map_or(String::new(), |labels| format!(" {labels}"));
        rows.push(format!(
            "| `{name}` | {kind} |{labels} | {} |",
            help.trim_end_matches('.')
        ));
    }
    rows
}

#[tokio::test]
async fn the_table_of_metrics_is_true() {
    let server = Server::start(&Setup::default());
    server.complete(json!({"prompt": "abc\n"})).await;
    let answered = rows_of(&server.get("/metrics").await.text);
    let document = component("docs/operations.md");
    let document = String::from_utf8(document).unwrap();
    let documented = document.lines().filter(|l| l.starts_with("| `sluice_"));
    let documented: Vec<_> = documented.map(str::to_owned).collect();
    assert_eq!(documented, answered, "{}", answered.join("\n"));
}

/// A time so long that no clock reaches its end is a defect that no flag can make.
#[tokio::test]
async fn a_defect_is_counted_as_one() {
    let server = Server::start(&Setup {
        requests: RequestLimits {
            time: Duration::MAX,
            ..RequestLimits::default()
        },
        ..Setup::default()
    });
    let answer = server.post(COMPLETIONS, &json!({"prompt": "a\n"})).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer.json()["error"]["code"], "internal_error");
    assert!(answer.header("x-request-id").is_some());
    let text = server.get("/metrics").await.text;
    let count = |code: &str| {
        let name = format!("sluice_requests_total{{route=\"{COMPLETIONS}\",code=\"{code}\"}}");
        figure(&text, &name)
    };
    assert_eq!(count("500"), Some(1.0), "{text}");
    assert_eq!(count("499"), None, "{text}");
}
