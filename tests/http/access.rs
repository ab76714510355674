//! Tokens on the running server.

use std::sync::OnceLock;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use sluice::http::{Access, Web};

use super::server::{Server, Setup, test_guest};

const TOKENS: &str = "ann generate aaaaaaaaaaaaaaaa\nbob upload bbbbbbbbbbbbbbbb";

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        Server::start(&Setup {
            access: Access::from_tokens(TOKENS).unwrap(),
            ..Setup::default()
        })
    })
}

async fn send(
    server: &Server,
    method: Method,
    path: &str,
    token: &str,
    body: impl Into<Body>,
) -> (StatusCode, Value) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::builder()
        .method(method)
        .uri(format!("http://{}{path}", server.address()))
        .header("authorization", format!("Bearer {token}"))
        .body(body.into())
        .unwrap();
    let response = client.request(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test]
async fn a_token_may_do_what_its_scopes_say() {
    let (ann, bob) = ("a".repeat(16), "b".repeat(16));
    let completion = json!({"prompt": "a\n", "temperature": 0}).to_string();
    for (token, status, code) in [
        (&ann[..], StatusCode::OK, Value::Null),
        (&bob, StatusCode::FORBIDDEN, json!("forbidden")),
        ("nobody", StatusCode::UNAUTHORIZED, json!("unauthorized")),
    ] {
        let path = "/v1/completions";
        let answer = send(server(), Method::POST, path, token, completion.clone()).await;
        assert_eq!(answer.0, status, "{token}");
        assert_eq!(answer.1["error"]["code"], code, "{token}");
    }
    for (token, status) in [
        (&ann, StatusCode::FORBIDDEN),
        (&bob, StatusCode::CREATED),
        (&bob, StatusCode::OK),
    ] {
        let guest = test_guest("stop-at");
        let answer = send(server(), Method::PUT, "/v1/plugins", token, guest).await;
        assert_eq!(answer.0, status, "{}", answer.1);
    }
    let answer = send(server(), Method::DELETE, "/v1/plugins/stop-at", &ann, "").await;
    assert_eq!(answer.0, StatusCode::FORBIDDEN);
    assert_eq!(server().get("/health").await.status, StatusCode::OK);
}

#[tokio::test]
async fn uploads_can_be_closed_without_tokens() {
    let server = Server::start(&Setup {
        access: Access::without_tokens(true),
        ..Setup::default()
    });
    let guest = test_guest("stop-at");
    let answer = send(&server, Method::PUT, "/v1/plugins", "any", guest).await;
    assert_eq!(answer.0, StatusCode::FORBIDDEN);
    assert!(
        answer.1["error"]["message"]
            .as_str()
            .unwrap()
            .contains("--tokens")
    );
    let (text, ..) = server.completed(json!({"prompt": "ab\n"})).await;
    assert_eq!(text, "ab");
}

/// What a browser has a page of elsewhere send.
#[tokio::test]
async fn without_tokens_pages_of_elsewhere_are_refused() {
    let named = || Web {
        origins: vec!["https://chat.example".parse().unwrap()],
        hosts: vec!["gpu.example".parse().unwrap()],
        ..Web::default()
    };
    let open = Server::start(&Setup {
        web: named(),
        ..Setup::default()
    });
    let closed = Server::start(&Setup {
        access: Access::from_tokens(TOKENS).unwrap(),
        ..Setup::default()
    });
    let send = async |server: &Server, path: &str, header: (&str, &str)| {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let request = Request::builder()
            .method(if path == "/health" { "GET" } else { "POST" })
            .uri(format!("http://{}{path}", server.address()))
            .header("authorization", format!("Bearer {}", "a".repeat(16)))
            .header(header.0, header.1)
            .body(Body::from(json!({"prompt": "a\n"}).to_string()))
            .unwrap();
        let response = client.request(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.into()).unwrap())
    };
    let own = format!("http://{}", open.address());
    for (header, says) in [
        (("host", "evil.example:8080"), Some("--allowed-host")),
        (("origin", "https://evil.example"), Some("--cors-origin")),
        (("origin", "null"), Some("--cors-origin")),
        (("host", "gpu.example"), None),
        (("host", "localhost"), None),
        (("origin", &own), None),
        (("origin", "https://chat.example"), None),
    ] {
        let (status, text) = send(&open, "/v1/completions", header).await;
        match says {
            None => assert_eq!(status, StatusCode::OK, "{header:?}: {text}"),
            Some(flag) => {
                assert_eq!(status, StatusCode::FORBIDDEN, "{header:?}: {text}");
                let error = serde_json::from_str::<Value>(&text).unwrap()["error"].take();
                assert_eq!(error["code"], "forbidden");
                let message = error["message"].as_str().unwrap();
                assert!(
                    message.contains(flag) && message.contains("--tokens"),
                    "{text}"
                );
            }
        }
        // No page has a token, and a probe says nothing.
        let (status, text) = send(&closed, "/v1/completions", header).await;
        assert_eq!(status, StatusCode::OK, "{header:?}: {text}");
        let (status, text) = send(&open, "/health", header).await;
        assert_eq!(status, StatusCode::OK, "{header:?}: {text}");
    }
}
