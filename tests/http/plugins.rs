//! Plugins: uploaded, used, removed, at fault.

use axum::body::Body;
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::server::{Server, test_guest};

const COMPLETIONS: &str = "/v1/completions";

async fn upload(server: &Server, bytes: Vec<u8>) -> (StatusCode, Value) {
    let answer = server.send(Method::PUT, "/v1/plugins", bytes).await;
    (answer.status, answer.json())
}

async fn delete(server: &Server, reference: &str) -> (StatusCode, Value) {
    let path = format!("/v1/plugins/{reference}");
    let answer = server.send(Method::DELETE, &path, Body::empty()).await;
    (answer.status, answer.json())
}

#[tokio::test]
async fn a_plugin_is_uploaded_used_and_removed() {
    let server = Server::shared();
    let request = json!({
        "prompt": "abcd\n", "temperature": 0,
        "processors": [{"plugin": "stop-at", "params": {"tokens": 2}, "on_fault": "fail"}],
    });
    let answer = server.post(COMPLETIONS, &request).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    let error = answer.json()["error"].take();
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("plugin_not_found"), &json!("processors[0].plugin"))
    );
    assert!(
        error["message"].as_str().unwrap().contains("stop-at"),
        "{error}"
    );

    let (status, plugin) = upload(server, test_guest("stop-at")).await;
    assert_eq!(status, StatusCode::CREATED, "{plugin}");
    assert_eq!(
        (&plugin["name"], &plugin["kind"]),
        (&json!("stop-at"), &json!("token-processor"))
    );
    assert_eq!(
        upload(server, test_guest("stop-at")).await,
        (StatusCode::OK, plugin.clone())
    );

    let version = format!("stop-at@{}", plugin["version"].as_str().unwrap());
    let digest = plugin["digest"].as_str().unwrap();
    for reference in ["stop-at", &version, digest] {
        let mut shown = server.get(&format!("/v1/plugins/{reference}")).await.json();
        assert_eq!(shown["log"].take(), json!([]));
        shown.as_object_mut().unwrap().remove("log");
        assert_eq!(shown, plugin);
        let mut request = request.clone();
        request["processors"][0]["plugin"] = reference.into();
        let answer = server.post(COMPLETIONS, &request).await.json();
        assert_eq!(answer["choices"][0]["text"], "ab", "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    let list = server.get("/v1/plugins").await.json();
    assert!(list["data"].as_array().unwrap().contains(&plugin));

    let (status, removed) = delete(server, "stop-at").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(removed["data"], json!([plugin]));
    assert_eq!(
        server.post(COMPLETIONS, &request).await.status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(delete(server, "stop-at").await.0, StatusCode::NOT_FOUND);
    assert_eq!(
        server.get("/v1/plugins/stop-at").await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn uploads_that_are_no_plugins_change_nothing() {
    let server = Server::shared();
    let good = test_guest("recorder");
    let mut bad: Vec<Vec<u8>> = (0..16)
        .map(|k| good[..good.len() * k / 16].to_vec())
        .collect();
    bad.push(b"(component)".to_vec());
    bad.push(b"\x7fELF\x02\x01\x01".to_vec());
    bad.push(b"\0asm\x01\0\0\0".to_vec());
    bad.push(vec![0xa5; 4096]);
    bad.push(test_guest("trap-describe"));
    for bytes in bad {
        let n_bytes = bytes.len();
        let (status, answer) = upload(server, bytes).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{n_bytes} bytes: {answer}");
        assert_eq!(answer["error"]["code"], "invalid_plugin");
    }
    assert_eq!(
        server.get("/v1/plugins/recorder").await.status,
        StatusCode::NOT_FOUND
    );
    let (status, answer) = upload(server, vec![0; (1 << 20) + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{answer}");
    assert_eq!(answer["error"]["code"], "body_too_large");
    let (status, answer) = delete(server, "sampler").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::CONFLICT, &json!("plugin_conflict"))
    );
}

#[tokio::test]
async fn processors_join_the_default_chain_by_kind() {
    let server = Server::shared();
    // A logits processor named before a token processor runs after it.
    let fields = json!({
        "prompt": "d", "max_tokens": 3, "frequency_penalty": 2,
        "processors": [{"plugin": "boost", "params": {"id": 4, "value": 3.95}}, {"plugin": "force", "params": {"ids": [7]}}],
    });
    assert_eq!(server.completed(fields).await.0, "dac");
    // A sampler takes the default one's place.
    let fields = json!({
        "prompt": "ccccc\n", "temperature": null,
        "processors": [{"plugin": "force-sampler", "params": {"ids": [2, 3]}}],
    });
    assert_eq!(
        server.completed(fields).await,
        ("ab".into(), "stop".into(), 2)
    );
}

#[tokio::test]
async fn a_chain_replaces_the_default_one() {
    let server = Server::shared();
    let fields = json!({
        "prompt": "d", "max_tokens": 4, "temperature": null,
        "chain": [
            {"plugin": "penalties", "params": {"frequency_penalty": 2}},
            {"plugin": "sampler", "params": {"temperature": 0}},
        ],
    });
    assert_eq!(server.completed(fields).await.0, "abab");
}

#[tokio::test]
async fn chains_that_cannot_be_honoured_are_refused() {
    let server = Server::shared();
    let sampler = json!({"plugin": "sampler"});
    let force = json!({"plugin": "force", "params": {"ids": [2]}});
    for (fields, status, code, param) in [
        (
            json!({"chain": [sampler, force]}),
            400,
            "invalid_chain",
            "chain[0]",
        ),
        (
            json!({"chain": [sampler, sampler]}),
            400,
            "invalid_chain",
            "chain[0]",
        ),
        (json!({"chain": [force]}), 400, "invalid_chain", "null"),
        (
            json!({"chain": [sampler], "temperature": 0}),
            400,
            "conflicting_fields",
            "temperature",
        ),
        (
            json!({"chain": [sampler], "min_tokens": 1}),
            400,
            "conflicting_fields",
            "min_tokens",
        ),
        (
            json!({"chain": [sampler], "processors": [force]}),
            400,
            "conflicting_fields",
            "processors",
        ),
        (
            json!({"processors": [{"plugin": "force-sampler", "params": {"ids": []}}], "top_p": 1}),
            400,
            "conflicting_fields",
            "top_p",
        ),
        (
            json!({"processors": [sampler, sampler]}),
            400,
            "invalid_chain",
            "processors[0]",
        ),
        (
            json!({"processors": [{"plugin": "force@9.9.9"}]}),
            404,
            "plugin_not_found",
            "processors[0].plugin",
        ),
        (
            json!({"processors": [{}]}),
            400,
            "missing_field",
            "processors[0].plugin",
        ),
        (
            json!({"processors": [5]}),
            400,
            "invalid_value",
            "processors[0]",
        ),
        (
            json!({"processors": [{"plugin": 5}]}),
            400,
            "invalid_value",
            "processors[0].plugin",
        ),
        (
            json!({"processors": [{"plugin": "force", "params": 5}]}),
            400,
            "invalid_value",
            "processors[0].params",
        ),
        (
            json!({"processors": [{"plugin": "force"}]}),
            400,
            "invalid_value",
            "processors[0].params",
        ),
        (
            json!({"processors": [{"plugin": "force", "params": {"ids": ["a"]}}]}),
            400,
            "invalid_value",
            "processors[0].params.ids",
        ),
        (
            json!({"processors": [{"plugin": "force", "params": {"ids": [2]}, "on_fault": "retry"}]}),
            400,
            "invalid_value",
            "processors[0].on_fault",
        ),
        (
            json!({"processors": [{"plugin": "boost", "params": {"id": 2, "value": 1}, "on_fault": "skip"}]}),
            400,
            "invalid_value",
            "processors[0].on_fault",
        ),
        (
            json!({"processors": [{"plugin": "boost", "params": {"id": 2, "value": 1}, "on_fault": "wait"}]}),
            400,
            "invalid_value",
            "processors[0].on_fault",
        ),
        (
            json!({"processors": [{"plugin": "force", "x": 1}]}),
            400,
            "unknown_field",
            "processors[0].x",
        ),
        (
            json!({"processors": vec![force.clone(); 40]}),
            400,
            "invalid_value",
            "processors",
        ),
        (
            json!({"processors": vec![force.clone(); 6], "prompt": vec!["a"; 20]}),
            400,
            "invalid_value",
            "prompt",
        ),
    ] {
        let mut body = json!({"prompt": "a", "max_tokens": 2});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let answer = server.post(COMPLETIONS, &body).await;
        assert_eq!(answer.status.as_u16(), status, "{fields}\n{}", answer.text);
        let error = answer.json()["error"].take();
        assert_eq!(error["code"], code, "{fields}\n{error}");
        let found = error["param"].as_str().unwrap_or("null");
        assert_eq!(found, param, "{fields}\n{error}");
    }
}

#[tokio::test]
async fn a_fault_ends_its_request_with_its_cause() {
    let server = Server::shared();
    let request = json!({
        "prompt": "abcd\n", "temperature": 0,
        "processors": [{"plugin": "misbehave-token", "params": {"fault": "trap", "after": 2}}],
    });
    let plain = server.post(COMPLETIONS, &request).await;
    assert_eq!(
        plain.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "{}",
        plain.text
    );
    let error = plain.json()["error"].take();
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("plugin_error"), &json!("plugin_error"))
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("misbehave-token"),
        "{error}"
    );

    let mut streamed = request.clone();
    streamed["stream"] = true.into();
    let answer = server.post(COMPLETIONS, &streamed).await;
    assert_eq!(answer.status, StatusCode::OK);
    let events: Vec<Value> = answer
        .events()
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let [a, b, last] = &events[..] else {
        panic!("two tokens and the error: {}", answer.text)
    };
    assert_eq!(
        (&a["choices"][0]["text"], &b["choices"][0]["text"]),
        (&json!("a"), &json!("b"))
    );
    assert_eq!(last["error"]["code"], "plugin_error");

    // The next request with the plugin and without its fault.
    let fields = json!({
        "prompt": "abcd\n",
        "processors": [{"plugin": "misbehave-token", "params": {"fault": "trap", "after": 50}}],
    });
    assert_eq!(server.completed(fields).await.0, "abcd");
}

#[tokio::test]
async fn a_fault_may_be_skipped_and_is_told() {
    let server = Server::shared();
    let fields = |after: u32, max_tokens: u32| {
        json!({
            "prompt": "abcdabcd\n", "max_tokens": max_tokens, "explain": true, "processors": [{
                "plugin": "misbehave-token", "params": {"fault": "panic", "after": after},
                "on_fault": "skip",
            }],
        })
    };
    let answer = server.complete(fields(1, 4)).await;
    assert_eq!(answer["choices"][0]["text"], "abcd");
    let choice = &answer["sluice"]["choices"][0];
    let stage = &choice["stages"][2];
    assert_eq!(
        (&stage["stage"], &stage["skipped"]),
        (&json!("misbehave-token"), &json!(3))
    );
    // The explanation has the fault and what the guest said of it.
    let effect = &choice["explain"][1]["stages"][0];
    assert_eq!(effect["did"], "skipped");
    assert!(
        effect["fault"]
            .as_str()
            .unwrap()
            .contains("misbehave-token"),
        "{effect}"
    );
    let said = effect["log"][0]["message"].as_str().unwrap();
    assert!(said.contains("asked to panic"), "{said}");
    // The plugin's author finds it there too.
    let plugin = server.get("/v1/plugins/misbehave-token").await.json();
    assert!(plugin["faults"].as_u64().unwrap() >= 3);
    assert_eq!(plugin["disabled"], Value::Null);
    let log = plugin["log"].as_array().unwrap();
    let found = |line: &Value| line["message"].as_str().unwrap().contains("asked to panic");
    assert!(log.iter().any(found), "{log:?}");
    // Nobody can be made to enable what does not exist.
    let enable = server
        .send(Method::POST, "/v1/plugins/none/enable", "")
        .await;
    assert_eq!(enable.status, StatusCode::NOT_FOUND);
    let enable = server
        .send(Method::POST, "/v1/plugins/misbehave-token/enable", "")
        .await;
    assert_eq!(enable.status, StatusCode::OK);
}
