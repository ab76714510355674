//! Clients that go away, and servers that have too much to do.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sluice::engine::EngineConfig;
use tokio::io::AsyncWriteExt;

use super::server::{Server, Setup};

const COMPLETIONS: &str = "/v1/completions";

/// A server whose sequences end by cancellation alone, for all practical
/// purposes.
fn endless(max_batch: usize, max_waiting: usize) -> Server {
    Server::start(&Setup {
        engine: EngineConfig {
            max_batch,
            max_waiting,
            kv_tokens: 100_000_000,
            ..EngineConfig::default()
        },
        context_length: 1_000_000,
        pace: Duration::from_millis(1),
        ..Setup::default()
    })
}

fn body(fields: &Value) -> Body {
    let mut body = json!({"prompt": "a", "temperature": 0});
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    Body::from(body.to_string())
}

/// Waits until as many sequences run or wait.
async fn until(server: &Server, running: usize, waiting: usize) {
    let arrived = async {
        loop {
            let stats = server.service.engine.stats();
            if (stats.running, stats.waiting) == (running, waiting) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let patience = Duration::from_mins(1);
    tokio::time::timeout(patience, arrived)
        .await
        .unwrap_or_else(|_| panic!("{:?}", server.service.engine.stats()));
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_sequences_along() {
    let server = endless(4, 8);
    for round in 0..5 {
        let stream = json!({"stream": true, "n": 4});
        let mut response = server.open(Method::POST, COMPLETIONS, body(&stream)).await;
        for _ in 0..round {
            response.body_mut().frame().await.unwrap().unwrap();
        }
        until(&server, 4, 0).await;
        drop(response);
        server.idle().await;

        let plain = server.open(Method::POST, COMPLETIONS, body(&json!({"n": 6})));
        tokio::select! {
            _ = plain => panic!("an endless answer ended"),
            () = until(&server, 4, 2) => {}
        }
        server.idle().await;
    }
    let answer = server
        .send(Method::POST, COMPLETIONS, body(&json!({"max_tokens": 3})))
        .await;
    assert_eq!(answer.json()["choices"][0]["text"], "aaa");
}

#[tokio::test]
async fn a_full_queue_is_answered_with_when_to_come_back() {
    let server = endless(1, 2);
    let streaming = json!({"stream": true});
    let mut open = Vec::new();
    for waiting in 0..=2 {
        open.push(
            server
                .open(Method::POST, COMPLETIONS, body(&streaming))
                .await,
        );
        until(&server, 1, waiting).await;
        // A request of several choices gets all of them or none.
        if waiting > 0 {
            let answer = server
                .send(Method::POST, COMPLETIONS, body(&json!({"n": 2})))
                .await;
            assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(answer.json()["error"]["code"], "overloaded");
            assert_eq!(answer.header("retry-after"), Some("1"));
            until(&server, 1, waiting).await;
        }
    }
    let answer = server
        .send(Method::POST, COMPLETIONS, body(&json!({"n": 3})))
        .await;
    assert_eq!(
        answer.status,
        StatusCode::BAD_REQUEST,
        "could never run: {}",
        answer.text
    );
    drop(open);
    server.idle().await;
    let answer = server
        .send(Method::POST, COMPLETIONS, body(&json!({"max_tokens": 1})))
        .await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn a_body_that_ends_early_hangs_nothing() {
    let server = endless(1, 1);
    let mut connection = tokio::net::TcpStream::connect(server.address())
        .await
        .unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{\"prompt\"";
    connection.write_all(head.as_bytes()).await.unwrap();
    drop(connection);
    let answer = server
        .send(Method::POST, COMPLETIONS, body(&json!({"max_tokens": 1})))
        .await;
    assert_eq!(answer.status, StatusCode::OK);
}
