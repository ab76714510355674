//! What is refused, before anything joins the batch.

use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode};
use futures_util::stream;
use serde_json::{Value, json};
use std::convert::Infallible;

use super::server::Server;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Asserts that a completion with these further fields is refused, and that
/// the message holds `says`.
async fn refused(fields: &Value, status: u16, code: &str, param: &str, says: &str) {
    let mut body = json!({"prompt": "ab\n", "max_tokens": 2});
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    refused_on(COMPLETIONS, &body, status, code, param, says).await;
}

async fn refused_on(path: &str, body: &Value, status: u16, code: &str, param: &str, says: &str) {
    let answer = Server::shared().post(path, body).await;
    assert_eq!(answer.status.as_u16(), status, "{body}\n{}", answer.text);
    let error = answer.json()["error"].take();
    assert_eq!(error["code"], code, "{body}\n{error}");
    assert_eq!(error["param"], param, "{body}\n{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(says), "{body}\n{message}\nlacks {says}");
}

#[tokio::test]
async fn an_error_has_openais_shape() {
    let answer = Server::shared()
        .post(COMPLETIONS, &json!({"prompt": "a", "top_p": 1.5}))
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.header("x-request-id").is_some());
    insta::assert_snapshot!(answer.text, @r#"{"error":{"message":"`top_p` is 1.5; it must be a number of at least 0 and at most 1","type":"invalid_request_error","param":"top_p","code":"invalid_value"}}"#);
}

#[tokio::test]
async fn values_out_of_range_or_of_another_type_name_the_field() {
    for (field, values) in [
        ("temperature", json!([-0.1, 100.5, "1", true, [], {}])),
        ("top_p", json!([-0.1, 1.1, "1"])),
        ("min_p", json!([-0.1, 1.1])),
        ("top_k", json!([-2, 1.5, "5"])),
        ("presence_penalty", json!([-2.1, 2.1, "1"])),
        ("frequency_penalty", json!([-2.1, 2.1])),
        ("repetition_penalty", json!([0, -1, 101])),
        ("repetition_context_size", json!([-1, 1.5])),
        ("xtc_probability", json!([-0.1, 1.1])),
        ("min_keep", json!([0, 1.5])),
        ("min_tokens", json!([-1, 1.5, "1"])),
        ("ignore_eos", json!([1, "true"])),
        ("no_repeat_ngram_size", json!([-1, 1.5])),
        (
            "logit_bias",
            json!([[], {"AI": -100}, {"3": "x"}, {"3": null}, {"01": 1}, {"+1": 1}, {"-1": 1}, {"12": 1}, {"3": 101}, "x"]),
        ),
        ("allowed_token_ids", json!([[], [12], [-1], ["a"], 5])),
        ("bad_words", json!(["a", [""], [[]], [[12]], [5]])),
        ("max_tokens", json!([0, -1, 1.5, "5", true])),
        ("n", json!([0, -1, 1_000_000, 1.5, "2"])),
        ("seed", json!([9_223_372_036_854_775_808_u64, 1.5, "7"])),
        ("stop", json!([[1], {}, "", [""], ["", "dd"], 5])),
        (
            "stop_token_ids",
            json!([[151_645], [-1], [12], ["a"], 1, [1.5]]),
        ),
        ("stream", json!([1, "true"])),
        (
            "prompt",
            json!([5, {}, [], [[]], [99], [2, "a"], ["a", [2]], ""]),
        ),
        ("model", json!([5, []])),
        ("processors", json!(["a", {}])),
        ("chain", json!([[], "a", {}])),
    ] {
        for value in values.as_array().unwrap() {
            refused(&json!({field: value}), 400, "invalid_value", field, field).await;
        }
    }
    refused(
        &json!({"temperature": 101}),
        400,
        "invalid_value",
        "temperature",
        "101",
    )
    .await;
    refused(
        &json!({"repeat_penalty": 0}),
        400,
        "invalid_value",
        "repeat_penalty",
        "above 0",
    )
    .await;
    refused(
        &json!({"stop_token_ids": [12]}),
        400,
        "invalid_value",
        "stop_token_ids",
        "0 to 11",
    )
    .await;
    refused(
        &json!({"max_tokens": 0}),
        400,
        "invalid_value",
        "max_tokens",
        "at least 1",
    )
    .await;
}

#[tokio::test]
async fn stop_strings_have_documented_limits() {
    let server = Server::shared();
    let sixteen: Vec<String> = (0..16).map(|k| format!("x{k}")).collect();
    let fields = json!({"prompt": "ab\n", "stop": sixteen});
    assert_eq!(server.completed(fields).await.0, "ab");
    let thousands: Vec<String> = (0..5_000).map(|k| format!("x{k}")).collect();
    refused(
        &json!({"stop": thousands}),
        400,
        "invalid_value",
        "stop",
        "64",
    )
    .await;
    refused(
        &json!({"stop": "x".repeat(50_000)}),
        400,
        "invalid_value",
        "stop",
        "1024",
    )
    .await;
    let answer = server
        .post(
            COMPLETIONS,
            &json!({"prompt": "a", "stop": "x".repeat(1_000_000)}),
        )
        .await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.json()["error"]["code"], "body_too_large");
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused() {
    for (fields, code, param, says) in [
        (
            json!({"temprature": 1}),
            "unknown_field",
            "temprature",
            "`temperature`",
        ),
        (json!({"messages": []}), "unknown_field", "messages", ""),
        (
            json!({"best_of": 2}),
            "unsupported_field",
            "best_of",
            "`n` is 1",
        ),
        (
            json!({"guided_regex": "a", "guided_choice": ["a"]}),
            "conflicting_fields",
            "guided_choice",
            "`guided_regex`",
        ),
        (
            json!({"max_tokens": 3, "n_predict": 4}),
            "conflicting_fields",
            "n_predict",
            "3",
        ),
        (
            json!({"min_tokens": 3}),
            "conflicting_fields",
            "min_tokens",
            "2",
        ),
        (
            json!({"stream_options": {"include_usage": true}}),
            "conflicting_fields",
            "stream_options",
            "`stream`",
        ),
        (
            json!({"stream": true, "stream_options": {"x": 1}}),
            "unknown_field",
            "stream_options.x",
            "include_usage",
        ),
        (
            json!({"stream": true, "stream_options": {"include_usage": 1}}),
            "invalid_value",
            "stream_options.include_usage",
            "",
        ),
    ] {
        refused(&fields, 400, code, param, says).await;
    }
    refused(
        &json!({"model": "gpt-5"}),
        404,
        "model_not_found",
        "model",
        "scripted",
    )
    .await;
    refused_on(COMPLETIONS, &json!({}), 400, "missing_field", "prompt", "").await;
    refused_on(
        COMPLETIONS,
        &json!({"prompt": null}),
        400,
        "missing_field",
        "prompt",
        "",
    )
    .await;
    refused_on(CHAT, &json!({}), 400, "missing_field", "messages", "").await;
    refused_on(
        CHAT,
        &json!({"messages": []}),
        400,
        "invalid_value",
        "messages",
        "",
    )
    .await;
}

#[tokio::test]
async fn a_prompt_without_room_is_refused_with_both_numbers() {
    for tokens in [64, 65, 1000] {
        let answer = Server::shared()
            .post(COMPLETIONS, &json!({"prompt": "a".repeat(tokens)}))
            .await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let error = answer.json()["error"].take();
        assert_eq!(error["code"], "context_length_exceeded");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(&tokens.to_string()) && message.contains("64"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_template_refuses_in_its_own_words_streamed_or_not() {
    for stream in [false, true] {
        let body = json!({"messages": [{"role": "system", "content": "a"}], "stream": stream});
        let answer = Server::shared().post(CHAT, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let error = answer.json()["error"].take();
        assert_eq!(error["code"], "template_error");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("roles must alternate"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn bodies_that_are_no_json_object_are_refused() {
    let server = Server::shared();
    let nested = "[".repeat(10_000);
    let bodies: [&[u8]; 9] = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\"x\"",
        b"{\"n\":1,\"n\":1}",
        b"{\"prompt\":\"\xc4\xe3\"}",
        b"{\"prompt\":\"\\ud83d\"}",
        nested.as_bytes(),
    ];
    for body in bodies {
        let answer = server
            .send(Method::POST, COMPLETIONS, Bytes::copy_from_slice(body))
            .await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
        assert_eq!(answer.json()["error"]["code"], "invalid_body");
    }
    let answer = server
        .send(Method::POST, COMPLETIONS, "x".repeat(100_000))
        .await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer.text.contains("65536"), "{}", answer.text);
}

#[tokio::test]
async fn a_body_in_chunks_of_unknown_length_is_read() {
    let chunks = ["{\"prompt\":", "\"ab\\n\",\"tempe", "rature\":0}"];
    let body = Body::from_stream(stream::iter(chunks.map(Ok::<_, Infallible>)));
    let answer = Server::shared().send(Method::POST, COMPLETIONS, body).await;
    assert_eq!(answer.json()["choices"][0]["text"], "ab");
}

#[tokio::test]
async fn routes_and_methods_that_do_not_exist_answer_in_json() {
    let server = Server::shared();
    for (method, path, status, code) in [
        (Method::GET, "/", 404, "not_found"),
        (Method::GET, "/v1/nothing", 404, "not_found"),
        (Method::GET, COMPLETIONS, 405, "method_not_allowed"),
        (Method::DELETE, "/v1/models", 405, "method_not_allowed"),
        (Method::POST, "/v1/plugins", 405, "method_not_allowed"),
        (Method::GET, "/v1/plugins/%ff", 404, "not_found"),
    ] {
        let answer = server.send(method, path, Body::empty()).await;
        assert_eq!(answer.status.as_u16(), status, "{path}");
        assert_eq!(answer.json()["error"]["code"], code, "{path}");
        assert!(answer.header("x-request-id").is_some());
    }
}

#[tokio::test]
async fn keys_of_any_length_are_cut_in_errors() {
    let key = "k".repeat(20_000);
    for fields in [
        json!({&key: 1}),
        json!({"stream": true, "stream_options": {&key: 1}}),
        json!({"response_format": {"type": "text", &key: 1}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {&key: 1}}}),
        json!({"structured_outputs": {&key: 1}}),
        json!({"processors": [{"plugin": "counter", &key: 1}]}),
        json!({"processors": [{"plugin": "force", "params": {&key: 1}}]}),
        json!({"processors": [{"plugin": "rules", "params": {"logit_bias": {&key: "x"}}}]}),
        json!({"processors": [{"plugin": &key}]}),
        json!({"logit_bias": {&key: 1}}),
        json!({"dialect": &key}),
    ] {
        let mut body = json!({"prompt": "ab\n"});
        let fields = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(fields);
        let answer = Server::shared().post(COMPLETIONS, &body).await;
        let shape: String = body.to_string().replace(&key, "KEY");
        assert!(answer.status.is_client_error(), "{shape}");
        let length = answer.text.len();
        assert!(length < 6_000, "{shape}: {length} bytes");
        let error = answer.json()["error"].take();
        let param = error["param"].as_str().unwrap_or_default();
        assert!(param.len() < 120, "{shape}: {param}");
    }
}

#[tokio::test]
async fn the_field_at_fault_is_named_and_no_other() {
    let messages = json!([{"role": "user", "content": "ab\n"}]);
    refused_on(
        CHAT,
        &json!({"messages": messages, "chat_template_kwargs": {"tools": []}}),
        400,
        "invalid_value",
        "chat_template_kwargs.tools",
        "`tools`",
    )
    .await;
    // An instance for each choice, of which there are 64 in all.
    let stages = json!([{"plugin": "counter", "on_fault": "skip"}]);
    let body = json!({"messages": messages, "n": 70, "processors": stages});
    refused_on(CHAT, &body, 400, "invalid_value", "messages", "70 choices").await;
    let many = json!({"n": 70, "processors": stages});
    refused(&many, 400, "invalid_value", "prompt", "70 choices").await;
}
