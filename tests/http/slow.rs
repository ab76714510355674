//! Clients that read slowly or not at all, steps that do not end, and callers
//! that want too much at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use sluice::engine::{EngineConfig, TokenId};
use sluice::http::{Access, RequestLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::server::{Server, Setup, test_guest};

const PATIENCE: Duration = Duration::from_mins(1);

/// A server whose answers end by cancellation alone, for all practical
/// purposes.
fn endless(slow_reader: Duration) -> Server {
    Server::start(&Setup {
        engine: EngineConfig {
            kv_tokens: 100_000_000,
            ..EngineConfig::default()
        },
        context_length: 10_000_000,
        slow_reader,
        ..Setup::default()
    })
}

/// Asks for an endless stream over a connection that holds little, and reads
/// nothing. The engine is at work on it then.
async fn ask(server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let address = server.address().parse().unwrap();
    let mut connection = socket.connect(address).await.unwrap();
    let body = json!({"prompt": "a", "temperature": 0, "stream": true}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let before = server.service.engine.stats().steps;
    connection.write_all(head.as_bytes()).await.unwrap();
    let begun = async {
        while server.service.engine.stats().steps == before {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.unwrap();
    connection
}

/// Waits until this many requests are under way.
async fn in_flight(server: &Server, n: usize) {
    let reached = async {
        while server.service.lifecycle.in_flight() != n {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap();
}

#[tokio::test]
async fn a_reader_that_falls_behind_is_told_that_it_was_left() {
    let server = endless(Duration::from_mins(10));
    let mut connection = ask(&server).await;
    in_flight(&server, 1).await;
    // The engine lets go of it by itself, while the connection stays.
    server.idle().await;
    assert_eq!(server.service.lifecycle.in_flight(), 1);

    let mut text = Vec::new();
    let end = b"0\r\n\r\n";
    while !text.ends_with(end) {
        let n = connection.read_buf(&mut text).await.unwrap();
        assert_ne!(n, 0, "cut without an event");
    }
    let text = String::from_utf8(text).unwrap();
    let last = text
        .lines()
        .rfind(|line| line.starts_with("data: "))
        .unwrap();
    let last: Value = serde_json::from_str(&last["data: ".len()..]).unwrap();
    assert_eq!(last["error"]["code"], "cancelled", "{last}");
    in_flight(&server, 0).await;
}

#[tokio::test]
async fn a_reader_that_takes_nothing_loses_its_connection() {
    let server = endless(Duration::from_millis(200));
    let mut connection = ask(&server).await;
    in_flight(&server, 1).await;
    // The connection goes without a byte being read.
    in_flight(&server, 0).await;
    server.idle().await;
    let mut rest = Vec::new();
    // Ends, by a reset or with what was on its way.
    let _ = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut rest))
        .await
        .unwrap();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "an answer that did not end");
}

/// No byte, half a head, and none after an answer.
#[tokio::test]
async fn a_client_that_says_nothing_loses_its_connection() {
    let server = Server::start(&Setup {
        head: Duration::from_secs(1),
        ..Setup::default()
    });
    for said in [
        "",
        "GET /hea",
        "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ] {
        let mut connection = TcpStream::connect(server.address()).await.unwrap();
        connection.write_all(said.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let reads = connection.read_to_string(&mut answer);
        tokio::time::timeout(PATIENCE, reads)
            .await
            .unwrap()
            .unwrap();
        let is_whole = said.ends_with('\n');
        assert_eq!(answer.starts_with("HTTP/1.1 200"), is_whole, "{answer}");
    }
}

static BLOCKED: AtomicBool = AtomicBool::new(false);

/// Hangs while it is blocked.
fn hanging(_: &[TokenId]) -> Vec<f32> {
    while BLOCKED.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    vec![0.0, 0.0, 4.0]
}

#[tokio::test]
async fn health_tells_of_a_step_that_does_not_end() {
    let server = Server::start(&Setup {
        script: hanging,
        requests: RequestLimits {
            step: Duration::from_millis(300),
            ..RequestLimits::default()
        },
        ..Setup::default()
    });
    let short = json!({"prompt": "b", "max_tokens": 1, "temperature": 0});
    server.complete(short.clone()).await;
    // A long rest is no long step.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(server.get("/health").await.status, StatusCode::OK);
    assert_eq!(server.get("/ready").await.status, StatusCode::OK);

    BLOCKED.store(true, Ordering::Relaxed);
    let stuck = server.post("/v1/completions", &short);
    let told = async {
        loop {
            let health = server.get("/health").await;
            if health.status != StatusCode::OK {
                break health;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let watch = async {
        let health = tokio::time::timeout(PATIENCE, told).await.unwrap();
        assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
        let error = health.json()["error"].take();
        assert_eq!(error["code"], "stopped");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("at one step for"), "{message}");
        let ready = server.get("/ready").await.status;
        assert_eq!(ready, StatusCode::SERVICE_UNAVAILABLE);
        BLOCKED.store(false, Ordering::Relaxed);
    };
    let (answer, ()) = tokio::join!(stuck, watch);
    assert_eq!(answer.status, StatusCode::OK);
    server.idle().await;
    assert_eq!(server.get("/health").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_caller_has_so_many_requests_and_others_have_theirs() {
    let server = Server::start(&Setup {
        engine: EngineConfig {
            kv_tokens: 100_000_000,
            ..EngineConfig::default()
        },
        context_length: 1_000_000,
        pace: Duration::from_millis(1),
        access: Access::from_tokens("ann generate aaaaaaaaaaaaaaaa\nben generate bbbbbbbbbbbbbbbb")
            .unwrap(),
        requests: RequestLimits {
            per_caller: 2,
            ..RequestLimits::default()
        },
        ..Setup::default()
    });
    let send = async |name: &str, body: Value| {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{}/v1/completions", server.address()))
            .header("authorization", format!("Bearer {}", name.repeat(16)))
            .body(Body::from(body.to_string()))
            .unwrap();
        client.request(request).await.unwrap()
    };
    let stream = || json!({"prompt": "a", "stream": true});
    let short = || json!({"prompt": "ab\n", "max_tokens": 1});
    let first = send("a", stream()).await;
    let second = send("a", stream()).await;
    assert_eq!(second.status(), StatusCode::OK);
    let third = send("a", short()).await;
    assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(third.headers()["retry-after"], "1");
    let body = third.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["error"]["code"], "rate_limited", "{body}");
    assert_eq!(send("b", short()).await.status(), StatusCode::OK);

    drop(first);
    let again = async {
        while send("a", short()).await.status() != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.unwrap();
    drop(second);
}

/// Clients that begin an upload and then say nothing hold up nobody else, and
/// without tokens not even each other until there are many.
#[tokio::test]
async fn an_upload_that_does_not_come_holds_up_no_other() {
    let tokens = "eve upload eeeeeeeeeeeeeeee\nbob upload bbbbbbbbbbbbbbbb";
    for (access, n_stalled) in [
        (Access::from_tokens(tokens).unwrap(), 12),
        (Access::without_tokens(false), 6),
    ] {
        let server = Server::start(&Setup {
            access,
            ..Setup::default()
        });
        let mut stalled = Vec::new();
        for _ in 0..n_stalled {
            let mut connection = TcpStream::connect(server.address()).await.unwrap();
            let head = "PUT /v1/plugins HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\
                        authorization: Bearer eeeeeeeeeeeeeeee\r\n\r\nhalf";
            connection.write_all(head.as_bytes()).await.unwrap();
            stalled.push(connection);
        }
        in_flight(&server, n_stalled).await;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let upload = Request::builder()
            .method(Method::PUT)
            .uri(format!("{}/v1/plugins", server.url))
            .header("authorization", "Bearer bbbbbbbbbbbbbbbb")
            .body(Body::from(test_guest("stop-at")))
            .unwrap();
        let response = client.request(upload).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        response.into_body().collect().await.unwrap();
        // All of them are still awaited.
        in_flight(&server, n_stalled).await;
    }
}
