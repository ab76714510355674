//! The description of the interface against what the server does.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use sluice::http::{Access, Web};

use super::server::{Answer, Server, Setup, test_guest};

async fn document(server: &Server) -> Value {
    let answer = server.get("/openapi.json").await;
    assert_eq!(answer.status, StatusCode::OK);
    answer.json()
}

/// Whether `value` is what the document says at `pointer`.
fn check(document: &Value, pointer: &str, value: &Value) -> Result<(), String> {
    let mut schema = document.clone();
    assert!(schema.pointer(pointer).is_some(), "nothing at {pointer}");
    let pointer = pointer.replace('{', "%7B").replace('}', "%7D");
    schema["$ref"] = format!("#{pointer}").into();
    let validator = jsonschema::validator_for(&schema).unwrap();
    validator
        .validate(value)
        .map_err(|error| format!("{}: {error}", error.instance_path()))
}

fn escaped(path: &str) -> String {
    path.replace('/', "~1")
}

/// Holds an answer against what the document says of its status.
fn check_answer(document: &Value, path: &str, method: &str, answer: &Answer) {
    let status = answer.status.as_u16();
    let at = format!("/paths/{}/{method}/responses/{status}", escaped(path));
    assert!(
        document.pointer(&at).is_some(),
        "{method} {path}: {status} {}",
        answer.text
    );
    let kind = answer.header("content-type").unwrap();
    let content = format!("{at}/content/{}", escaped(kind));
    if kind == "application/json" {
        let schema = format!("{content}/schema");
        check(document, &schema, &answer.json())
            .unwrap_or_else(|e| panic!("{path} {e}\n{}", answer.text));
    } else if kind == "text/event-stream" {
        for event in answer.events() {
            if event != "[DONE]" {
                let event = serde_json::from_str(event).unwrap();
                check(document, &format!("{content}/x-chunk"), &event)
                    .unwrap_or_else(|e| panic!("{path} {e}\n{event}"));
            }
        }
    } else {
        assert!(document.pointer(&content).is_some(), "{kind}");
    }
}

/// Every reference within a value, but for those of plugins' schemas, which
/// have a base of their own.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) if members.contains_key("$id") => {}
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                found.insert(reference.clone());
            }
            members.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn every_operation_answers_as_documented() {
    let server = Server::start(&Setup::default());
    let document = document(&server).await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 20, "{found:?}");
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }

    let guest = test_guest("stop-at");
    let plain =
        json!({"prompt": "ab\n", "temperature": 0, "logprobs": 2, "stop": "b", "explain": true});
    let chat = json!({
        "messages": [{"role": "user", "content": "ab\n"}], "logprobs": true, "top_logprobs": 1,
        "stream_options": null,
    });
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let mut texts = plain.clone();
    texts["stream"] = true.into();
    let fault = json!({"prompt": "a", "processors": [
        {"plugin": "misbehave-token", "params": {"fault": "trap", "after": 0}},
    ]});
    let mut n_operations = 0;
    for (method, template, path, body, status) in [
        (
            "post",
            "/v1/completions",
            None,
            plain.to_string().into_bytes(),
            200,
        ),
        (
            "post",
            "/v1/completions",
            None,
            texts.to_string().into_bytes(),
            200,
        ),
        ("post", "/v1/completions", None, b"{".to_vec(), 400),
        ("post", "/v1/completions", None, vec![b' '; 70_000], 413),
        (
            "post",
            "/v1/completions",
            None,
            br#"{"model": "x", "prompt": "a"}"#.to_vec(),
            404,
        ),
        (
            "post",
            "/v1/completions",
            None,
            fault.to_string().into_bytes(),
            422,
        ),
        (
            "post",
            "/v1/chat/completions",
            None,
            chat.to_string().into_bytes(),
            200,
        ),
        (
            "post",
            "/v1/chat/completions",
            None,
            streamed.to_string().into_bytes(),
            200,
        ),
        (
            "post",
            "/v1/chat/completions",
            None,
            br#"{"messages": []}"#.to_vec(),
            400,
        ),
        ("get", "/v1/models", None, vec![], 200),
        (
            "get",
            "/v1/models/{id}",
            Some("/v1/models/scripted"),
            vec![],
            200,
        ),
        (
            "get",
            "/v1/models/{id}",
            Some("/v1/models/an/other"),
            vec![],
            404,
        ),
        ("get", "/v1/dialects", None, vec![], 200),
        ("get", "/v1/plugins", None, vec![], 200),
        ("put", "/v1/plugins", None, guest.clone(), 201),
        ("put", "/v1/plugins", None, guest, 200),
        ("put", "/v1/plugins", None, b"no plugin".to_vec(), 400),
        (
            "get",
            "/v1/plugins/{reference}",
            Some("/v1/plugins/stop-at"),
            vec![],
            200,
        ),
        (
            "get",
            "/v1/plugins/{reference}",
            Some("/v1/plugins/nothing"),
            vec![],
            404,
        ),
        (
            "post",
            "/v1/plugins/{reference}/enable",
            Some("/v1/plugins/stop-at/enable"),
            vec![],
            200,
        ),
        (
            "delete",
            "/v1/plugins/{reference}",
            Some("/v1/plugins/rules"),
            vec![],
            409,
        ),
        (
            "delete",
            "/v1/plugins/{reference}",
            Some("/v1/plugins/stop-at"),
            vec![],
            200,
        ),
        ("get", "/health", None, vec![], 200),
        ("get", "/ready", None, vec![], 200),
        ("get", "/metrics", None, vec![], 200),
        ("get", "/openapi.json", None, vec![], 200),
    ] {
        let sent = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let answer = server.send(sent, path.unwrap_or(template), body).await;
        assert_eq!(
            answer.status, status,
            "{method} {template}: {}",
            answer.text
        );
        check_answer(&document, template, method, &answer);
        n_operations += usize::from(answer.status.is_success());
    }
    assert!(n_operations > 14);
}

#[tokio::test]
async fn what_is_not_documented_is_not_there() {
    let server = Server::shared();
    let document = document(server).await;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{reference}", "none").replace("{id}", "none");
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::PATCH,
        ] {
            let documented = methods.get(method.as_str().to_lowercase()).is_some();
            let answer = server.send(method.clone(), &path, Body::empty()).await;
            let refused = answer.status == StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(documented, !refused, "{method} {path}: {}", answer.text);
            assert!(!answer.text.contains("there is no route"), "{path}");
        }
    }
    assert!(document["components"]["securitySchemes"].is_object());
    let open = &document["paths"]["/v1/models"]["get"];
    assert_eq!(open.get("security"), None, "this server has no tokens");
    let closed = Server::start(&Setup {
        access: Access::from_tokens("ann generate aaaaaaaaaaaaaaaa").unwrap(),
        ..Setup::default()
    });
    let answer = closed.get("/openapi.json").await;
    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
}

/// What the schema of a request says of a body, and what the server does.
#[tokio::test]
async fn bodies_that_the_schemas_refuse_are_refused() {
    let server = Server::shared();
    let document = document(server).await;
    let plain = "/components/schemas/CompletionRequest";
    // Every name by which a request may call the model.
    assert_eq!(
        document.pointer(plain).unwrap()["properties"]["model"]["enum"],
        json!(["scripted", "also-scripted", null])
    );
    let chat = "/components/schemas/ChatCompletionRequest";
    let user = json!([{"role": "user", "content": "a\n"}]);
    for (schema, body, accepted) in [
        (
            plain,
            json!({"prompt": "a\n", "max_tokens": null, "stream": false, "n": 2}),
            true,
        ),
        (
            plain,
            json!({"prompt": [2, 6], "logit_bias": {"3": -100}, "user": "x"}),
            true,
        ),
        (
            plain,
            json!({"prompt": ["a\n", "b\n"], "top_p": 0.5, "top_k": 3, "seed": -1}),
            true,
        ),
        (
            plain,
            json!({"prompt": "a\n", "dialect": "llama.cpp", "repeat_last_n": -1, "n_predict": -1}),
            true,
        ),
        (
            plain,
            json!({"prompt": "a\n", "processors": [{"plugin": "boost", "params": {"id": 3, "value": 1}}]}),
            true,
        ),
        (
            plain,
            json!({"prompt": "a\n", "suffix": "", "best_of": 1, "echo": true, "max_tokens": 0}),
            true,
        ),
        (
            chat,
            json!({"messages": user, "max_completion_tokens": 2, "tools": null}),
            true,
        ),
        (
            chat,
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a\n"}]}]}),
            true,
        ),
        (plain, json!({"prompt": "a\n", "colour": "blue"}), false),
        (plain, json!({"max_tokens": 1}), false),
        (plain, json!({"prompt": 5}), false),
        (plain, json!({"prompt": "a\n", "n": 0}), false),
        (plain, json!({"prompt": "a\n", "temperature": "hot"}), false),
        (plain, json!({"prompt": "a\n", "top_k": 1.5}), false),
        (plain, json!({"prompt": "a\n", "suffix": "end"}), false),
        (plain, json!({"prompt": "a\n", "logprobs": true}), false),
        (plain, json!({"prompt": "a\n", "dialect": "klingon"}), false),
        (
            plain,
            json!({"prompt": "a\n", "chain": [{"params": {}}]}),
            false,
        ),
        (
            plain,
            json!({"prompt": "a\n", "processors": [{"plugin": "force", "params": {"ids": "all"}}]}),
            false,
        ),
        (plain, json!({"prompt": "a\n", "repeat_penalty": []}), false),
        (plain, json!({"messages": user}), false),
        (chat, json!({"messages": user, "logprobs": 1}), false),
        (
            chat,
            json!({"messages": [{"role": "robot", "content": "a"}]}),
            false,
        ),
        (
            chat,
            json!({"messages": user, "response_format": {"type": "poem"}}),
            false,
        ),
    ] {
        let said = check(&document, schema, &body);
        assert_eq!(said.is_ok(), accepted, "{body}: {said:?}");
        let path = if schema == chat {
            "/v1/chat/completions"
        } else {
            "/v1/completions"
        };
        let answer = server.post(path, &body).await;
        assert_eq!(
            answer.status.is_success(),
            accepted,
            "{body}: {}",
            answer.text
        );
    }
}

#[tokio::test]
async fn an_uploaded_plugin_is_described_as_long_as_it_is_there() {
    let server = Server::start(&Setup::default());
    let uploaded = server
        .send(Method::PUT, "/v1/plugins", test_guest("stop-at"))
        .await
        .json();
    let name = format!("plugin.stop-at-{}", uploaded["version"].as_str().unwrap());
    let mut described = document(&server).await["components"]["schemas"][&name].take();
    let id = described.as_object_mut().unwrap().remove("$id");
    assert!(id.is_some());
    let mut expected = uploaded["params_schema"].clone();
    expected.as_object_mut().unwrap().remove("$id");
    assert_eq!(described, expected);
    server
        .send(Method::DELETE, "/v1/plugins/stop-at", Body::empty())
        .await;
    assert_eq!(
        document(&server).await["components"]["schemas"].get(&name),
        None
    );
}

async fn send(
    server: &Server,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, HeaderMap, Vec<u8>) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", server.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = client
        .request(request.body(Body::empty()).unwrap())
        .await
        .unwrap();
    let (head, body) = response.into_parts();
    (
        head.status,
        head.headers,
        body.collect().await.unwrap().to_bytes().into(),
    )
}

#[tokio::test]
async fn a_request_keeps_the_name_that_its_client_gave_it() {
    let server = Server::shared();
    let long = "x".repeat(129);
    for (given, kept) in [
        ("my-request.1", true),
        (
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            true,
        ),
        ("", false),
        ("two words", false),
        ("line\tbreak", false),
        ("{\"json\": 1}", false),
        (&long, false),
    ] {
        let (.., headers, _) =
            send(server, Method::GET, "/health", &[("x-request-id", given)]).await;
        let id = headers["x-request-id"].to_str().unwrap();
        assert_eq!(id == given, kept, "{id}");
        assert!(kept || id.starts_with("req-"), "{id}");
    }
}

#[tokio::test]
async fn pages_of_named_origins_may_read_answers() {
    let server = Server::start(&Setup {
        access: Access::from_tokens("ann generate aaaaaaaaaaaaaaaa").unwrap(),
        web: Web {
            origins: vec!["https://chat.example".parse().unwrap()],
            compress: true,
            ..Web::default()
        },
        ..Setup::default()
    });
    // A browser asks before it sends a token.
    let ask = |origin: &'static str| {
        [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            (
                "access-control-request-headers",
                "authorization,content-type,x-stainless-lang",
            ),
        ]
    };
    let path = "/v1/completions";
    let (status, headers, _) =
        send(&server, Method::OPTIONS, path, &ask("https://chat.example")).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        headers["access-control-allow-origin"],
        "https://chat.example"
    );
    let allowed = headers["access-control-allow-headers"].to_str().unwrap();
    assert!(
        allowed.contains("authorization") && allowed.contains("x-stainless-lang"),
        "{allowed}"
    );
    let (_, headers, _) = send(
        &server,
        Method::OPTIONS,
        path,
        &ask("https://other.example"),
    )
    .await;
    assert_eq!(headers.get("access-control-allow-origin"), None);
    // An error can be read too.
    let origin = ("origin", "https://chat.example");
    let (status, headers, _) = send(&server, Method::GET, "/v1/models", &[origin]).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(
        headers["access-control-allow-origin"],
        "https://chat.example"
    );
    let exposed = headers["access-control-expose-headers"].to_str().unwrap();
    assert!(
        exposed.contains("x-sluice-seed") && exposed.contains("x-request-id"),
        "{exposed}"
    );
    // Without origins nothing is said.
    let (_, headers, _) = send(Server::shared(), Method::GET, "/health", &[origin]).await;
    assert!(
        headers
            .keys()
            .all(|name| !name.as_str().starts_with("access-control"))
    );

    let token = ("authorization", "Bearer aaaaaaaaaaaaaaaa");
    let gzip = ("accept-encoding", "gzip");
    let (_, headers, body) = send(&server, Method::GET, "/v1/plugins", &[token, gzip]).await;
    assert_eq!(headers["content-encoding"], "gzip");
    assert_eq!(body[..2], [0x1f, 0x8b], "the magic number of gzip");
    let (_, headers, _) = send(&server, Method::GET, "/v1/plugins", &[token]).await;
    assert_eq!(headers.get("content-encoding"), None);
}
