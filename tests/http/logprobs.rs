//! Logprobs in both shapes, the prompt shown, and what the stages report.
//!
//! A prompt without a newline is followed by the logits a 4.0, b 3.9, c 0, d 0
//! for ever: with Z = e⁴ + e^3.9 + 2 their logprobs are −0.663445, −0.763445 and
//! −4.663445. A scripted token has 10.0 and the eleven others 0: −0.000499.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::server::Server;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

const A: f64 = -0.663_445;
const B: f64 = -0.763_445;
const OTHER: f64 = -4.663_445;
const SCRIPTED: f64 = -0.000_499;

fn near(value: &Value, expected: f64) -> bool {
    (value.as_f64().unwrap() - expected).abs() < 1e-5
}

/// Numbers of a list, near enough.
fn all_near(list: &Value, expected: &[f64]) {
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), expected.len(), "{list:?}");
    for (value, &expected) in list.iter().zip(expected) {
        assert!(near(value, expected), "{value} is not {expected}");
    }
}

async fn post(path: &str, body: &Value) -> Value {
    let answer = Server::shared().post(path, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{body}\n{}", answer.text);
    answer.json()
}

async fn chunks(path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let answer = Server::shared().post(path, &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{body}\n{}", answer.text);
    let mut events = answer.events();
    assert_eq!(events.pop(), Some("[DONE]"));
    let parse = |event: &&str| serde_json::from_str(event).unwrap();
    events.iter().map(parse).collect()
}

fn chat(content: &str, fields: &Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": content}], "temperature": 0, "logprobs": true,
    });
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

#[tokio::test]
async fn a_chat_has_each_tokens_logprob_and_the_best_beside_it() {
    let body = chat("a", &json!({"max_tokens": 2, "top_logprobs": 3}));
    let answer = post(CHAT, &body).await;
    let content = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    assert_eq!(content.len(), 2);
    for entry in content {
        assert_eq!(
            (&entry["token"], &entry["bytes"]),
            (&json!("a"), &json!([97]))
        );
        assert!(near(&entry["logprob"], A));
        let top = entry["top_logprobs"].as_array().unwrap();
        let tokens: Vec<_> = top.iter().map(|entry| &entry["token"]).collect();
        assert_eq!(tokens, ["a", "b", "c"]);
        let logprobs = top.iter().map(|entry| entry["logprob"].clone());
        all_near(&logprobs.collect(), &[A, B, OTHER]);
    }
}

#[tokio::test]
async fn logprobs_alone_list_nothing_beside_the_token() {
    for fields in [
        json!({"max_tokens": 1}),
        json!({"max_tokens": 1, "top_logprobs": 0}),
    ] {
        let answer = post(CHAT, &chat("a", &fields)).await;
        let entry = &answer["choices"][0]["logprobs"]["content"][0];
        assert_eq!(entry["top_logprobs"], json!([]));
        assert!(near(&entry["logprob"], A));
    }
}

#[tokio::test]
async fn a_streamed_chat_has_the_same_entries_with_their_text() {
    let halves = json!({
        "top_logprobs": 1, "max_tokens": 7,
        "processors": [{"plugin": "force", "params": {"ids": [2, 8, 9, 10, 11, 3]}}],
    });
    for fields in [json!({"max_tokens": 5}), halves] {
        let body = chat("a", &fields);
        let whole = post(CHAT, &body).await;
        let mut streamed = Vec::new();
        for chunk in chunks(CHAT, &body).await {
            let choice = &chunk["choices"][0];
            if let Some(entries) = choice["logprobs"]["content"].as_array() {
                let bytes = entries.iter().flat_map(|entry| {
                    let bytes = entry["bytes"].as_array().unwrap();
                    bytes.iter().map(|byte| byte.as_u64().unwrap() as u8)
                });
                let text = choice["delta"]["content"].as_str().unwrap();
                assert_eq!(String::from_utf8(bytes.collect()).unwrap(), text);
                streamed.extend(entries.clone());
            }
        }
        assert_eq!(
            Value::Array(streamed),
            whole["choices"][0]["logprobs"]["content"],
            "{fields}"
        );
    }
}

#[tokio::test]
async fn halves_of_a_character_have_their_own_bytes() {
    let force = json!([{"plugin": "force", "params": {"ids": [8, 9]}}]);
    let body = chat("a", &json!({"max_tokens": 2, "processors": force}));
    let answer = post(CHAT, &body).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "😀");
    let content = choice["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<_> = content.iter().map(|entry| &entry["bytes"]).collect();
    assert_eq!(bytes, [&json!([240, 159]), &json!([152, 128])]);
}

#[tokio::test]
async fn a_stop_string_has_no_entries() {
    let fields = json!({"chat_template_kwargs": {"suffix": "\n"}, "stop": ["c"]});
    let answer = post(CHAT, &chat("abcd", &fields)).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "ab");
    let content = choice["logprobs"]["content"].as_array().unwrap();
    let tokens: Vec<_> = content.iter().map(|entry| &entry["token"]).collect();
    assert_eq!(tokens, ["a", "b"]);
}

#[tokio::test]
async fn completions_have_an_entry_for_the_end_token_too() {
    let body = json!({"prompt": "ab\n", "temperature": 0, "logprobs": 1});
    let answer = post(COMPLETIONS, &body).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "ab");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "<eos>"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2]));
    all_near(&logprobs["token_logprobs"], &[SCRIPTED; 3]);
    let keys = |index: usize| -> Vec<String> {
        let top = logprobs["top_logprobs"][index].as_object().unwrap();
        top.keys().cloned().collect()
    };
    assert_eq!((keys(0), keys(2)), (vec!["a".into()], vec!["<eos>".into()]));
    // The chat's shape does not have it.
    let body = chat("ab", &json!({"chat_template_kwargs": {"suffix": "\n"}}));
    let answer = post(CHAT, &body).await;
    let content = &answer["choices"][0]["logprobs"]["content"];
    assert_eq!(content.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_prompt_is_shown_with_its_logprobs() {
    // As evaluation harnesses ask: the last entry is cut off by them.
    let body = json!({
        "prompt": "ab", "echo": true, "max_tokens": 1, "logprobs": 1, "temperature": 0,
    });
    let answer = post(COMPLETIONS, &body).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "aba");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "a"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2]));
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    assert!(near(&logprobs["token_logprobs"][1], B));
    assert!(near(&logprobs["token_logprobs"][2], A));
    // The token itself is listed beside the best one.
    let top = logprobs["top_logprobs"][1].as_object().unwrap();
    assert_eq!(top.len(), 2);
    assert!(near(&top["a"], A) && near(&top["b"], B));
    assert_eq!(answer["usage"]["completion_tokens"], 1);

    // Streamed, the prompt comes first, in one piece.
    let chunks = chunks(COMPLETIONS, &body).await;
    let texts: Vec<_> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["text"])
        .collect();
    assert_eq!(texts, ["ab", "a", ""]);
    let tokens = &chunks[0]["choices"][0]["logprobs"]["tokens"];
    assert_eq!(tokens, &json!(["a", "b"]));
    assert_eq!(
        chunks[1]["choices"][0]["logprobs"]["text_offset"],
        json!([2])
    );
}

#[tokio::test]
async fn a_prompt_alone_can_be_scored_up_to_the_whole_context() {
    for n in [1, 2, 64] {
        let body = json!({
            "prompt": vec![3; n], "echo": true, "max_tokens": 0, "logprobs": 0,
        });
        let answer = post(COMPLETIONS, &body).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "b".repeat(n));
        assert_eq!(choice["finish_reason"], "length");
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len(), n);
        assert!(logprobs[1..].iter().all(|value| near(value, B)));
        assert_eq!(answer["usage"]["completion_tokens"], 0);
    }
    let body = json!({"prompt": "ab", "echo": true, "max_tokens": 0});
    let answer = post(COMPLETIONS, &body).await;
    assert_eq!(answer["choices"][0]["text"], "ab");
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    // Several prompts and choices each show their own.
    let body =
        json!({"prompt": ["a", "bb"], "n": 2, "echo": true, "max_tokens": 1, "temperature": 0});
    let answer = post(COMPLETIONS, &body).await;
    let choices = answer["choices"].as_array().unwrap();
    let texts: Vec<_> = choices.iter().map(|choice| &choice["text"]).collect();
    assert_eq!(texts, ["aa", "aa", "bba", "bba"]);
}

#[tokio::test]
async fn truncation_and_bans_do_not_touch_raw_logprobs_nor_make_infinities() {
    let body = json!({
        "prompt": "ab", "echo": true, "logprobs": 1, "top_k": 1, "temperature": 1, "max_tokens": 2,
    });
    let answer = post(COMPLETIONS, &body).await;
    let logprobs = answer["choices"][0]["logprobs"]["token_logprobs"]
        .as_array()
        .unwrap();
    assert_eq!(logprobs[0], Value::Null);
    assert!(logprobs[1..].iter().all(Value::is_f64));
    // `<eos>` is banned by the model itself: JSON has no infinity for it.
    let body = chat(
        "a",
        &json!({
            "max_tokens": 2, "processors": [{"plugin": "force", "params": {"ids": [6, 7]}}],
        }),
    );
    let answer = post(CHAT, &body).await;
    let content = &answer["choices"][0]["logprobs"]["content"];
    assert_eq!(content[0]["logprob"], -9999.0);
}

#[tokio::test]
async fn processed_logprobs_are_those_of_the_row_that_was_sampled() {
    // b + 2 is 5.9: with Z = e⁴ + e^5.9 + 2 its logprob is −0.144141.
    let logprob = |mode: &'static str| async move {
        let fields = json!({"max_tokens": 1, "logit_bias": {"3": 2}, "logprobs_mode": mode});
        let answer = post(CHAT, &chat("a", &fields)).await;
        let entry = answer["choices"][0]["logprobs"]["content"][0].clone();
        assert_eq!(entry["token"], "b");
        entry["logprob"].clone()
    };
    assert!(near(&logprob("raw").await, B));
    assert!(near(&logprob("processed").await, -0.144_141));
}

#[tokio::test]
async fn forced_tokens_have_the_logprobs_of_their_positions() {
    let body = chat(
        "a",
        &json!({
            "max_tokens": 3, "processors": [{"plugin": "force", "params": {"ids": [3, 4]}}],
        }),
    );
    let answer = post(CHAT, &body).await;
    let content = answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap();
    let tokens: Vec<_> = content.iter().map(|entry| &entry["token"]).collect();
    assert_eq!(tokens, ["b", "c", "a"]);
    let logprobs = content.iter().map(|entry| entry["logprob"].clone());
    all_near(&logprobs.collect(), &[B, OTHER, A]);
}

#[tokio::test]
async fn every_row_of_a_batch_has_the_logprobs_it_asked_for() {
    let ask = |top: usize, n: usize| async move {
        let mut fields = json!({"max_tokens": 6, "n": n});
        if top > 0 {
            fields["top_logprobs"] = top.into();
        }
        let answer = post(CHAT, &chat("a", &fields)).await;
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), n);
        for choice in choices {
            for entry in choice["logprobs"]["content"].as_array().unwrap() {
                // Four tokens are not banned.
                let listed = entry["top_logprobs"].as_array().unwrap().len();
                assert_eq!(listed, top.min(4));
            }
        }
    };
    tokio::join!(ask(0, 1), ask(1, 2), ask(2, 1), ask(20, 3), ask(3, 1));
}

#[tokio::test]
async fn what_cannot_be_shown_is_refused() {
    let shared = Server::shared();
    for (path, fields, param) in [
        (
            CHAT,
            json!({"logprobs": false, "top_logprobs": 2}),
            "top_logprobs",
        ),
        (
            CHAT,
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (CHAT, json!({"logprobs": 1}), "logprobs"),
        (
            CHAT,
            json!({"logprobs": false, "logprobs_mode": "raw"}),
            "logprobs_mode",
        ),
        (
            CHAT,
            json!({"logprobs": true, "logprobs_mode": "both"}),
            "logprobs_mode",
        ),
        (CHAT, json!({"echo": true}), "echo"),
        (CHAT, json!({"max_tokens": 0}), "max_tokens"),
        (COMPLETIONS, json!({"logprobs": true}), "logprobs"),
        (COMPLETIONS, json!({"logprobs": 21}), "logprobs"),
        (COMPLETIONS, json!({"logprobs": -1}), "logprobs"),
        (COMPLETIONS, json!({"n_probs": 3, "logprobs": 2}), "n_probs"),
        (COMPLETIONS, json!({"echo": "yes"}), "echo"),
        (COMPLETIONS, json!({"explain": 1}), "explain"),
        (
            COMPLETIONS,
            json!({"echo": true, "logprobs": 1, "logprobs_mode": "processed"}),
            "logprobs_mode",
        ),
    ] {
        let mut body = match path {
            CHAT => json!({"messages": [{"role": "user", "content": "a"}]}),
            _ => json!({"prompt": "a"}),
        };
        let given = fields.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(given);
        let answer = shared.post(path, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{fields}");
        assert_eq!(answer.json()["error"]["param"], param, "{fields}");
    }
}

#[tokio::test]
async fn every_answer_names_the_stages_that_ran() {
    let body = json!({
        "prompt": "a", "temperature": 0, "max_tokens": 3, "n": 2, "presence_penalty": 1,
        "processors": [{"plugin": "force", "params": {"ids": [3]}}],
    });
    let answer = post(COMPLETIONS, &body).await;
    let registry = &Server::shared().service.registry;
    let choices = answer["sluice"]["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for choice in choices {
        let stages = choice["stages"].as_array().unwrap();
        let mut found = Vec::new();
        for stage in stages {
            let plugin = registry.get(stage["plugin"].as_str().unwrap()).unwrap();
            assert_eq!(stage["digest"], plugin.digest);
            assert_eq!(stage["version"], plugin.version.to_string());
            assert!(stage["microseconds"].is_u64());
            let count = |name: &str| stage[name].as_u64().unwrap();
            found.push((stage["stage"].clone(), count("calls"), count("edits")));
        }
        // The first position is decided by `force`, so the sampler is asked
        // twice; presence finds nothing to edit before the first token.
        let expected = [
            ("rules", 3, 0),
            ("penalties", 3, 2),
            ("force", 3, 0),
            ("sampler", 2, 0),
        ];
        assert_eq!(
            found,
            expected.map(|(name, calls, edits)| (json!(name), calls, edits))
        );
    }
    let last = chunks(COMPLETIONS, &body).await.pop().unwrap();
    let stages = &last["sluice"]["choices"][0]["stages"];
    assert_eq!(stages.as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn an_explanation_says_what_each_stage_did_to_each_position() {
    let body = json!({
        "prompt": "a", "temperature": 0, "max_tokens": 2, "presence_penalty": 1, "explain": true,
        "logit_bias": {"4": 0.5}, "processors": [{"plugin": "force", "params": {"ids": [2]}}],
    });
    let explained = |positions: &[Value]| {
        assert_eq!(
            positions[0],
            json!({"position": 0, "stages": [{"stage": "force", "did": "forced", "tokens": [2]}]})
        );
        let second = &positions[1];
        assert_eq!(second["position"], 1);
        let stages = second["stages"].as_array().unwrap();
        let rules = &stages[0];
        assert_eq!(
            (&rules["stage"], &rules["did"]),
            (&json!("rules"), &json!("changed"))
        );
        assert_eq!(
            rules["raised"],
            json!([{"token": 4, "from": 0.0, "to": 0.5}])
        );
        assert_eq!(
            (&rules["banned"], &rules["choice_changed"]),
            (&json!(0), &json!(false))
        );
        // Probabilities 0.515074, 0.466059, 0.009434 twice.
        assert!(near(&rules["entropy_before"], 0.785_522), "{rules}");
        let penalties = &stages[1];
        assert_eq!(
            penalties["dropped"],
            json!([{"token": 2, "from": 4.0, "to": 3.0}])
        );
        assert_eq!(penalties["choice_changed"], true);
        assert_eq!(stages[2], json!({"stage": "force", "did": "unchanged"}));
        assert_eq!(
            stages[3],
            json!({"stage": "sampler", "did": "chose", "token": 3, "choice_changed": false})
        );
        assert_eq!(positions.len(), 2);
    };
    let answer = post(COMPLETIONS, &body).await;
    explained(
        answer["sluice"]["choices"][0]["explain"]
            .as_array()
            .unwrap(),
    );
    let chunks = chunks(COMPLETIONS, &body).await;
    let streamed: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| chunk["sluice"]["choices"][0]["explain"].as_array())
        .flatten()
        .cloned()
        .collect();
    explained(&streamed);
}
