//! What takes too long, or comes too often.

use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use sluice::http::RequestLimits;
use sluice::plugin::Limits;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::server::{Server, Setup, test_guest};

const COMPLETIONS: &str = "/v1/completions";

/// A server on which calls may take 20 ms, and plans that may be late `late`.
fn hurried(late: Duration, total: Duration) -> Server {
    Server::start(&Setup {
        plugins: Limits {
            max_instances: 64,
            call: Duration::from_millis(20),
            patience: Duration::from_millis(1),
            late,
            total,
            ..Limits::default()
        },
        ..Setup::default()
    })
}

/// A fifth of a second of work, and more, at each of three positions.
fn slow(on_fault: &str) -> Value {
    json!({
        "prompt": "abcd\n", "max_tokens": 3, "temperature": 0, "processors": [
            {"plugin": "slow", "params": {"rounds": 1_000_000_000}, "on_fault": on_fault},
        ],
    })
}

/// The error of an answer that is a plugin's fault.
async fn fault(server: &Server, body: &Value) -> String {
    let answer = server.post(COMPLETIONS, body).await;
    let status = answer.status;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{}", answer.text);
    let error = answer.json()["error"].take();
    assert_eq!(error["code"], "plugin_error");
    error["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_request_may_let_its_plans_be_late() {
    let server = hurried(Duration::from_mins(1), Duration::from_mins(1));
    let message = fault(&server, &slow("fail")).await;
    assert!(message.contains("`plan` ran for longer"), "{message}");

    let answer = server.complete(slow("wait")).await;
    assert_eq!(answer["choices"][0]["text"], "abc");
    let stages = answer["sluice"]["choices"][0]["stages"].as_array().unwrap();
    let of = |name| stages.iter().find(|stage| stage["stage"] == name).unwrap();
    assert_eq!(of("slow")["calls"], 3);
    assert_eq!(of("slow")["late"], 3);
    assert_eq!(of("penalties").get("late"), None);
}

#[tokio::test]
async fn a_late_plan_has_a_deadline_too_and_nobody_waits_for_it() {
    let server = hurried(Duration::from_millis(300), Duration::from_mins(1));
    let mut endless = slow("wait");
    endless["processors"][0]["params"]["rounds"] = u64::MAX.into();
    let others = async {
        let mut n_tokens = 0;
        for _ in 0..20 {
            let (text, ..) = server.completed(json!({"prompt": "abcdabcd\n"})).await;
            n_tokens += text.len();
        }
        n_tokens
    };
    let (message, n_tokens) = tokio::join!(fault(&server, &endless), others);
    assert!(message.contains("limit of 300ms"), "{message}");
    assert_eq!(n_tokens, 160);
}

#[tokio::test]
async fn the_stages_of_a_sequence_have_a_limit_in_all() {
    let server = hurried(Duration::from_mins(1), Duration::from_millis(100));
    let mut body = slow("wait");
    body["max_tokens"] = 9.into();
    body["prompt"] = "abcdabcdabcd\n".into();
    body["processors"][0]["params"]["rounds"] = 400_000_000.into();
    let message = fault(&server, &body).await;
    assert!(message.contains("stage `slow`"), "{message}");
    assert!(message.contains("the limit is 100ms"), "{message}");
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_told() {
    let server = Server::start(&Setup {
        pace: Duration::from_millis(20),
        requests: RequestLimits {
            time: Duration::from_millis(200),
            ..RequestLimits::default()
        },
        ..Setup::default()
    });
    let mut body = json!({"prompt": "a", "max_tokens": 60});
    let answer = server.post(COMPLETIONS, &body).await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    let error = answer.json()["error"].take();
    assert_eq!(error["code"], "request_timeout");
    assert!(error["message"].as_str().unwrap().contains("200ms"));

    body["stream"] = true.into();
    let answer = server.post(COMPLETIONS, &body).await;
    assert_eq!(answer.status, StatusCode::OK);
    let events = answer.events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "request_timeout");
    assert!(events.len() > 1, "{events:?}");
    // The engine has let go of both.
    server.idle().await;
    assert_eq!(server.completed(json!({"prompt": "ab\n"})).await.0, "ab");
}

#[tokio::test]
async fn uploads_have_a_rate() {
    let server = Server::start(&Setup {
        requests: RequestLimits {
            uploads_per_minute: 2,
            ..RequestLimits::default()
        },
        ..Setup::default()
    });
    let upload = || server.send(Method::PUT, "/v1/plugins", test_guest("stop-at"));
    assert_eq!(upload().await.status, StatusCode::CREATED);
    assert_eq!(upload().await.status, StatusCode::OK);
    let answer = upload().await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.json()["error"]["code"], "rate_limited");
    let seconds: u32 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn more_instances_of_one_plugin_than_there_may_be_are_refused_before_they_open() {
    let server = Server::start(&Setup {
        plugins: Limits {
            max_instances: 64,
            max_instances_of_one: 2,
            ..Limits::default()
        },
        ..Setup::default()
    });
    let stage = json!({"plugin": "slow", "params": {"rounds": 1}, "on_fault": "skip"});
    let asks = |n: usize, stages: &[&Value]| json!({"prompt": "ab\n", "n": n, "temperature": 0, "processors": stages});
    // An instance for each choice: two choices have room, three never will.
    server.complete(asks(2, &[&stage])).await;
    for body in [asks(3, &[&stage]), asks(2, &[&stage, &stage])] {
        let answer = server.post(COMPLETIONS, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
        let error = &answer.json()["error"];
        assert_eq!(error["param"], "n");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("instances of `slow`"), "{message}");
        assert!(message.ends_with("at most 2"), "{message}");
    }
}

#[tokio::test]
async fn answers_that_could_grow_too_large_are_refused_before_the_work() {
    let server = Server::start(&Setup {
        requests: RequestLimits {
            answer_values: 100,
            ..RequestLimits::default()
        },
        ..Setup::default()
    });
    // The prompt has three tokens of the context's 64, the chain three stages.
    let ask = |fields: Value| {
        let mut body = json!({"prompt": "ab\n", "temperature": 0});
        let fields = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        let server = &server;
        async move { server.post(COMPLETIONS, &body).await }
    };
    for fields in [
        json!({"logprobs": 4, "n": 2, "max_tokens": 10}),
        json!({"logprobs": 4, "echo": true, "max_tokens": 17}),
        json!({"logprobs": 4, "n": 2, "max_tokens": 11, "stream": true}),
        json!({"explain": true, "max_tokens": 2}),
        json!({"n": 128}),
    ] {
        let answer = ask(fields.clone()).await;
        assert_eq!(answer.status, StatusCode::OK, "{fields}: {}", answer.text);
    }
    for (fields, field, values) in [
        (
            json!({"logprobs": 4, "n": 2, "max_tokens": 11}),
            "max_tokens",
            "110",
        ),
        (
            json!({"logprobs": 4, "n": 2, "n_predict": 11}),
            "n_predict",
            "110",
        ),
        (
            json!({"logprobs": 4, "echo": true, "max_tokens": 18}),
            "max_tokens",
            "105",
        ),
        (json!({"logprobs": 1}), "max_tokens", "122"),
        (
            json!({"logprobs": 4, "prompt": ["a\n", "b\n"], "max_tokens": 11}),
            "max_tokens",
            "110",
        ),
        (
            json!({"explain": true, "max_tokens": 3}),
            "max_tokens",
            "144",
        ),
    ] {
        let answer = ask(fields.clone()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{fields}");
        let error = answer.json()["error"].take();
        assert_eq!(error["code"], "invalid_value", "{fields}");
        assert_eq!(error["param"], field, "{fields}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(field) && message.contains(values) && message.contains("at most 100"),
            "{message}"
        );
    }
}

/// A server with a plugin whose preparation only ends at its limit.
async fn endless_preparation(prepare: Duration, requests: RequestLimits) -> Server {
    let server = Server::start(&Setup {
        plugins: Limits {
            max_instances: 64,
            prepare,
            ..Limits::default()
        },
        requests,
        ..Setup::default()
    });
    let upload = server.send(Method::PUT, "/v1/plugins", test_guest("spin-prepare"));
    assert_eq!(upload.await.status, StatusCode::CREATED);
    server
}

fn prepared() -> Value {
    json!({"prompt": "ab\n", "processors": [{"plugin": "spin-prepare"}]})
}

#[tokio::test]
async fn a_request_that_takes_too_long_to_open_is_told() {
    let requests = RequestLimits {
        time: Duration::from_millis(200),
        ..RequestLimits::default()
    };
    let server = endless_preparation(Duration::from_mins(10), requests).await;
    let answer = server.post(COMPLETIONS, &prepared()).await;
    let status = answer.status;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{}", answer.text);
    assert_eq!(answer.json()["error"]["code"], "request_timeout");
}

#[tokio::test]
async fn a_client_that_leaves_while_its_plugins_are_prepared_keeps_its_place() {
    let prepare = Duration::from_secs(2);
    let requests = RequestLimits {
        per_caller: 1,
        ..RequestLimits::default()
    };
    let server = endless_preparation(prepare, requests).await;
    let body = prepared().to_string();
    let request = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let started = Instant::now();
    let mut client = TcpStream::connect(server.address()).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    while server.service.runtime.memory_bytes() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(client);
    let probe = json!({"prompt": "ab\n", "temperature": 0});
    while server.post(COMPLETIONS, &probe).await.status != StatusCode::OK {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The guest was at work until then.
    assert!(started.elapsed() >= prepare, "{:?}", started.elapsed());
}
