//! Plugins: used while they come and go, harmless where they fail, and told
//! exactly the tokens of their sequence.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::answers::france;
use crate::component;
use crate::server::{Server, text};

#[tokio::test]
async fn a_plugin_comes_is_used_and_goes_while_another_request_streams() {
    let server = Server::shared();
    let story = json!({
        "prompt": "The history of the city of Rome begins", "max_tokens": 600,
        "temperature": 0, "repetition_penalty": 1.1,
    });
    let alone = server.complete(&story).await;
    let mut streamed = story.clone();
    streamed["stream"] = true.into();
    let streaming = tokio::spawn(async move {
        let events = server.stream("/v1/completions", &streamed).await;
        events
            .iter()
            .filter_map(|event| serde_json::from_str::<Value>(event).ok())
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned))
            .collect::<String>()
    });
    tokio::time::sleep(Duration::from_millis(300)).await;

    let mut body = france();
    body["processors"] =
        json!([{"plugin": "ban-words", "params": {"words": ["Paris", "capital"]}}]);
    let (status, answer) = server.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{answer}");

    let (status, uploaded) = server
        .upload(component("examples/dist/ban-words.wasm"))
        .await;
    assert_eq!(status, StatusCode::CREATED, "{uploaded}");
    assert_eq!(uploaded["name"], "ban-words");
    let (status, _) = server
        .upload(component("examples/dist/ban-words.wasm"))
        .await;
    assert_eq!(status, StatusCode::OK, "the same bytes again");
    let (status, answer) = server.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty());
    assert!(
        !content.contains("Paris") && !content.contains("capital"),
        "{content}"
    );

    // Hot sampling reaches for rare tokenizations; none gets through.
    body["temperature"] = 1.5.into();
    body["max_tokens"] = 60.into();
    body["processors"][0]["params"]["words"] = json!(["e", "the", "France", " is"]);
    for seed in 0..6 {
        body["seed"] = seed.into();
        let (_, answer) = server.post("/v1/chat/completions", &body).await;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(
            !content.contains('e') && !content.contains(" is"),
            "{content}"
        );
    }

    let (status, _) = server.delete("ban-words").await;
    assert!(status.is_success());
    let (status, answer) = server.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(answer["error"]["code"], "plugin_not_found");
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("ban-words")
    );

    assert_eq!(streaming.await.unwrap(), text(&alone));
}

/// A formula changes without the host: the next version of `penalties`
/// counts the prompt, and requests without a version get it.
#[tokio::test]
async fn a_new_version_of_a_default_plugin_is_used_and_the_old_one_stays() {
    // A server of its own: the others must not meet the new version.
    let server = Server::start(&[]);
    let body = |chain: &str| {
        json!({
            "prompt": "one two three one two three one two three one two",
            "max_tokens": 8,
            "chain": [
                {"plugin": chain, "params": {"frequency_penalty": 2, "presence_penalty": 2}},
                {"plugin": "sampler", "params": {"temperature": 0}},
            ],
        })
    };
    let before = server.complete(&body("penalties")).await;
    let (status, uploaded) = server
        .upload(component("tests/guests/dist/mutant-penalties.wasm"))
        .await;
    assert_eq!(status, StatusCode::CREATED, "{uploaded}");
    assert_eq!(uploaded["name"], "penalties");
    assert_eq!(uploaded["version"], "0.1.1");
    let after = server.complete(&body("penalties")).await;
    let pinned = server.complete(&body("penalties@0.1.0")).await;
    assert_ne!(after["choices"], before["choices"]);
    assert_eq!(pinned["choices"], before["choices"]);
}

/// Every way to misbehave that a kind of plugin has, with the words that the
/// error must contain.
const FAULTS: [(&str, &str, &str); 26] = [
    ("misbehave-token", "spin", "longer than its limit"),
    ("misbehave-token", "trap", "unreachable"),
    ("misbehave-token", "panic", "asked to panic"),
    ("misbehave-token", "recurse", "stack"),
    ("misbehave-token", "grow", "memory"),
    ("misbehave-token", "error", "asked to fail"),
    ("misbehave-token", "nan-edit", "NaN"),
    ("misbehave-token", "infinite-edit", "inf"),
    ("misbehave-token", "outside-edit", "49152"),
    ("misbehave-token", "outside-deny", "49152"),
    ("misbehave-token", "zero-divisor", "divisor"),
    ("misbehave-token", "unequal-edit", "1"),
    ("misbehave-token", "deny-all", "last token"),
    ("misbehave-token", "force-nothing", "force"),
    ("misbehave-token", "force-outside", "49152"),
    ("misbehave-token", "decide-twice", "stop"),
    ("misbehave-logits", "spin", "longer than its limit"),
    ("misbehave-logits", "nan-row", "NaN"),
    ("misbehave-logits", "short-row", "49151"),
    ("misbehave-logits", "banned-row", "last token"),
    ("misbehave-logits", "edit-and-row", "row"),
    ("misbehave-sampler", "spin", "longer than its limit"),
    ("misbehave-sampler", "recurse", "stack"),
    ("misbehave-sampler", "outside", "49152"),
    ("misbehave-sampler", "banned", "banned"),
    ("misbehave-sampler", "trap", "unreachable"),
];

#[tokio::test]
async fn a_plugin_can_hurt_only_its_own_request() {
    // These are more faults than any plugin may have.
    let server = &Server::start(&["--plugin-max-faults", "0"]);
    for name in ["misbehave-token", "misbehave-logits", "misbehave-sampler"] {
        let (status, answer) = server
            .upload(component(&format!("tests/guests/dist/{name}.wasm")))
            .await;
        assert!(status.is_success(), "{answer}");
    }
    let neighbour = |i: usize| {
        json!({
            "prompt": format!("Chapter {i}. It was"), "max_tokens": 10, "seed": i,
            "temperature": 0.8, "presence_penalty": 0.5,
        })
    };
    let mut solo = Vec::new();
    for i in 0..7 {
        solo.push(server.complete(&neighbour(i)).await);
    }
    for (plugin, fault, words) in FAULTS {
        for after in [Some(3), None] {
            // Edits and decisions are refused in `open`, for another reason.
            let common = ["spin", "trap", "panic", "recurse", "grow", "error"];
            if after.is_none() && !common.contains(&fault) {
                continue;
            }
            let mut params = json!({"fault": fault});
            if let Some(after) = after {
                params["after"] = after.into();
            }
            let mut faulty = json!({
                "prompt": "The faulty one", "max_tokens": 30,
                "processors": [{"plugin": plugin, "params": params}],
            });
            if plugin != "misbehave-sampler" {
                faulty["temperature"] = 0.into();
            }
            if fault == "banned" {
                faulty["logit_bias"] = json!({"7": -100});
                faulty["ignore_eos"] = true.into();
            }
            let others = futures_util::future::join_all(
                (0..7).map(|i| async move { server.complete(&neighbour(i)).await }),
            );
            let ((status, answer), others) =
                tokio::join!(server.post("/v1/completions", &faulty), others);
            let label = format!("{plugin} {fault} after {after:?}: {answer}");
            assert!(status.is_client_error(), "{status} {label}");
            let error = &answer["error"];
            assert_eq!(error["code"], "plugin_error", "{label}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(plugin), "{label}");
            assert!(message.contains(words), "{words} in {label}");
            for (other, solo) in others.iter().zip(&solo) {
                assert_eq!(other["choices"], solo["choices"], "{label}");
            }
        }
    }
    for name in ["spin-describe", "trap-describe"] {
        let (status, answer) = server
            .upload(component(&format!("tests/guests/dist/{name}.wasm")))
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{name}: {answer}");
        assert!(
            answer["error"]["message"]
                .as_str()
                .unwrap()
                .contains("describe"),
            "{answer}"
        );
    }
    let (status, _) = server.get("/health").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        server.complete(&neighbour(3)).await["choices"],
        solo[3]["choices"]
    );
}

/// In a stream the fault is an error event, and no `[DONE]` follows.
#[tokio::test]
async fn a_fault_ends_a_stream_with_an_error_event() {
    let server = Server::shared();
    let guest = component("tests/guests/dist/misbehave-token.wasm");
    assert!(server.upload(guest).await.0.is_success());
    let body = json!({
        "prompt": "Once", "max_tokens": 9, "temperature": 0, "stream": true,
        "processors": [{"plugin": "misbehave-token", "params": {"fault": "trap", "after": 2}}],
    });
    let events = server.stream("/v1/completions", &body).await;
    let error: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "plugin_error");
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("misbehave-token")
    );
    assert!(!events.iter().any(|event| event == "[DONE]"));
}

/// The context of every call, told by a plugin that reports it in the end.
async fn report(server: &Server, prompt: &[u32], tokens: usize) -> Value {
    let body = json!({
        "prompt": prompt, "max_tokens": tokens + 5, "temperature": 0, "ignore_eos": true,
        "processors": [{"plugin": "recorder", "params": {"report_after": tokens}}],
    });
    let (status, answer) = server.post("/v1/completions", &body).await;
    assert_eq!(answer["error"]["code"], "plugin_error", "{status} {answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    let start = message.find('{').unwrap();
    let end = message.rfind('}').unwrap();
    serde_json::from_str(&message[start..=end]).unwrap()
}

/// Exactly one `plan` for each position and opening, with the whole prompt
/// and every accepted token, the newest included: for one row and for eight,
/// in one prefill chunk and in many, for early and late joiners.
#[tokio::test]
async fn a_plugin_sees_exactly_the_tokens_of_its_sequence() {
    let shared = Server::shared();
    let small = Server::start(&["--prefill-chunk", "16"]);
    for server in [shared, &small] {
        let guest = component("tests/guests/dist/recorder.wasm");
        assert!(server.upload(guest).await.0.is_success());
        let mut expected = Vec::new();
        for alone in [true, false] {
            let reports = (0..8u32).map(|i| async move {
                let prompt: Vec<u32> = (0..20 + i * 23).map(|k| 300 + (k * 7 + i) % 4000).collect();
                if !alone {
                    tokio::time::sleep(Duration::from_millis(u64::from(i) * 40)).await;
                }
                let report = report(server, &prompt, 12 + i as usize).await;
                (prompt, report)
            });
            let reports = if alone {
                let mut all = Vec::new();
                for report in reports {
                    all.push(report.await);
                }
                all
            } else {
                futures_util::future::join_all(reports).await
            };
            for (i, (prompt, report)) in reports.iter().enumerate() {
                assert_eq!(report["prompt"], json!(prompt));
                let calls = report["accepted"].as_array().unwrap();
                assert_eq!(calls.len(), 12 + i + 1, "one call per position: {calls:?}");
                assert_eq!(calls[0], json!([]));
                assert!(
                    calls[1..]
                        .iter()
                        .all(|call| call.as_array().unwrap().len() == 1)
                );
            }
            let tokens: Vec<Value> = reports
                .into_iter()
                .map(|(_, r)| r["accepted"].clone())
                .collect();
            if alone {
                expected = tokens;
            } else {
                assert_eq!(tokens, expected, "alone and in company");
            }
        }
        // What the plugin was told is what the client gets.
        let prompt: Vec<u32> = (0..20).map(|k| 300 + k * 7 % 4000).collect();
        let body =
            json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
        let answer = server.complete(&body).await;
        let told: Vec<u64> = expected[0].as_array().unwrap()[1..]
            .iter()
            .map(|call| call[0].as_u64().unwrap())
            .collect();
        let body = json!({
            "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true,
            "processors": [{"plugin": "force", "params": {"ids": told}}],
        });
        assert!(
            server
                .upload(component("tests/guests/dist/force.wasm"))
                .await
                .0
                .is_success()
        );
        assert_eq!(text(&server.complete(&body).await), text(&answer));
    }
}
