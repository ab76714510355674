//! Failures that users of other servers reported, with the right answer here.
//! `tests/CASES.md` lists them all; those that no other test holds are here.

use std::sync::OnceLock;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sluice::engine::{EngineConfig, TokenId};

use super::server::{Server, Setup};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const BANNED: f32 = f32::NEG_INFINITY;

/// 5.0 for the end id 1 and 4.8 for `a`, or, when the prompt begins with `d`,
/// what a hash of the context mixes.
fn script(context: &[TokenId]) -> Vec<f32> {
    if context[0] == 4 {
        let mix = context
            .iter()
            .fold(3u32, |h, &t| h.wrapping_mul(37).wrapping_add(t + 1));
        return (0..12u32)
            .map(|id| match id {
                0 | 1 | 7.. => BANNED,
                _ => (mix.wrapping_mul(2 * id + 1) >> 24) as f32 / 64.0,
            })
            .collect();
    }
    vec![BANNED, 5.0, 4.8, 0.0, 0.0, 0.0, 0.0, 0.0]
}

/// A model with two end ids, 1 and 7, in small prefill chunks.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        Server::start(&Setup {
            script,
            end_of_sequence: vec![1, 7],
            engine: EngineConfig {
                prefill_chunk: 4,
                ..EngineConfig::default()
            },
            ..Setup::default()
        })
    })
}

fn with(mut body: Value, fields: &Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

async fn post(body: &Value) -> Value {
    let answer = server().post(COMPLETIONS, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{body}\n{}", answer.text);
    answer.json()
}

/// Text, finish reason and token count, which are the same streamed and not,
/// with logprobs and without.
async fn every_way(fields: &Value) -> (String, String, u64) {
    let body = with(json!({"prompt": "c", "temperature": 0}), fields);
    let mut found = Vec::new();
    for logprobs in [json!(null), json!(2)] {
        let body = with(body.clone(), &json!({"logprobs": logprobs}));
        let answer = post(&body).await;
        let choice = &answer["choices"][0];
        found.push((
            choice["text"].as_str().unwrap().to_owned(),
            choice["finish_reason"].as_str().unwrap().to_owned(),
            answer["usage"]["completion_tokens"].as_u64().unwrap(),
        ));
        let streaming = json!({"stream": true, "stream_options": {"include_usage": true}});
        let answer = server().post(COMPLETIONS, &with(body, &streaming)).await;
        let (mut text, mut reason, mut tokens) = (String::new(), String::new(), 0);
        for event in answer.events() {
            let Ok(chunk) = serde_json::from_str::<Value>(event) else {
                assert_eq!(event, "[DONE]");
                continue;
            };
            if let Some(choice) = chunk["choices"].get(0) {
                text.push_str(choice["text"].as_str().unwrap());
                reason.push_str(choice["finish_reason"].as_str().unwrap_or_default());
            }
            if let Some(n) = chunk["usage"]["completion_tokens"].as_u64() {
                tokens = n;
            }
        }
        found.push((text, reason, tokens));
    }
    let first = found.remove(0);
    assert!(
        found.iter().all(|other| *other == first),
        "{first:?}, {found:?}"
    );
    first
}

#[tokio::test]
async fn an_end_is_never_shown_nor_counted_and_wins_over_the_length() {
    let forced = |ids: &[TokenId], more: Value| {
        let force = json!([{"plugin": "force", "params": {"ids": ids}}]);
        with(json!({"processors": force, "max_tokens": 9}), &more)
    };
    for (fields, text, reason, tokens) in [
        (forced(&[2, 3, 1], json!({})), "ab", "stop", 2),
        (forced(&[2, 7, 3], json!({})), "a", "stop", 1),
        (forced(&[1], json!({})), "", "stop", 0),
        (forced(&[7], json!({})), "", "stop", 0),
        (
            forced(&[2, 3, 4], json!({"max_tokens": 2})),
            "ab",
            "length",
            2,
        ),
        (forced(&[2, 1, 4], json!({"max_tokens": 2})), "a", "stop", 1),
        (forced(&[2, 7], json!({"max_tokens": 1})), "a", "length", 1),
        (forced(&[1], json!({"max_tokens": 1})), "", "stop", 0),
        (
            forced(&[2, 4, 3], json!({"stop_token_ids": [4]})),
            "a",
            "stop",
            1,
        ),
        (
            forced(&[2, 4, 7], json!({"stop_token_ids": [3]})),
            "ac",
            "stop",
            2,
        ),
        (forced(&[2, 3, 1], json!({"stop": ["zz"]})), "ab", "stop", 2),
    ] {
        let found = every_way(&fields).await;
        assert_eq!(found, (text.into(), reason.into(), tokens), "{fields}");
    }
}

#[tokio::test]
async fn an_answer_without_tokens_has_an_empty_list_of_logprobs() {
    let body = json!({
        "messages": [{"role": "user", "content": "c"}], "logprobs": true,
        "processors": [{"plugin": "force", "params": {"ids": [1]}}],
    });
    let answer = server().post(CHAT, &body).await.json();
    assert_eq!(answer["choices"][0]["logprobs"]["content"], json!([]));
}

/// The end id is in the prompt six times and is penalised once, as the
/// definition has it: 5 / 1.2 = 4.17 < 4.8, so the word wins. A stage after it
/// can give the end its 5.0 back.
#[tokio::test]
async fn a_penalised_end_id_can_be_restored() {
    let fields = json!({
        "prompt": [3, 1, 1, 1, 1, 1, 1], "temperature": 0, "max_tokens": 1,
        "repetition_penalty": 1.2,
    });
    let text = |answer: &Value| answer["choices"][0]["text"].clone();
    assert_eq!(text(&post(&fields).await), "a");
    let boost = json!({"processors": [{"plugin": "boost", "params": {"id": 1, "value": 0.85}}]});
    let answer = post(&with(fields, &boost)).await;
    assert_eq!(text(&answer), "");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn xtc_works_with_several_end_ids_and_drops_none() {
    for seed in 0..40 {
        let body = json!({
            "prompt": "b", "xtc_probability": 1, "xtc_threshold": 0.1, "temperature": 1,
            "max_tokens": 5, "seed": seed,
        });
        // `<eos>` has 0.54 and `a` 0.44: dropping the end would leave `a`
        // alone, for ever; xtc is skipped, so that the draw can end.
        let answer = post(&body).await;
        if answer["choices"][0]["finish_reason"] == "stop" {
            return;
        }
    }
    panic!("the end was never drawn");
}

/// `min_tokens` bans the end, the grammar everything else: that request ends
/// with an error that names the stage which banned the last token; what came
/// before is shown, and nobody else notices.
#[tokio::test]
async fn rules_that_leave_nothing_end_their_request_alone() {
    let neighbour = json!({"prompt": [4, 2], "max_tokens": 30, "temperature": 1, "seed": 3});
    let alone = post(&neighbour).await;
    let fields = json!({
        "prompt": "c", "temperature": 0, "max_tokens": 9, "min_tokens": 8,
        "guided_choice": ["ab"],
    });
    let streamed = with(fields.clone(), &json!({"stream": true}));
    let (beside, plain, streamed) = tokio::join!(
        post(&neighbour),
        server().post(COMPLETIONS, &fields),
        server().post(COMPLETIONS, &streamed),
    );
    assert_eq!(beside["choices"], alone["choices"]);
    assert_eq!(plain.status, StatusCode::UNPROCESSABLE_ENTITY);
    let error = &plain.json()["error"];
    assert_eq!(error["code"], "plugin_error");
    assert!(
        error["message"].as_str().unwrap().contains("grammar"),
        "{error}"
    );
    let events = streamed.events();
    let parse = |event: &&str| serde_json::from_str::<Value>(event).unwrap();
    let events: Vec<_> = events.iter().map(parse).collect();
    let texts: Vec<_> = events.iter().map(|e| &e["choices"][0]["text"]).collect();
    assert_eq!(texts[..2], [&json!("a"), &json!("b")]);
    assert_eq!(events.last().unwrap()["error"]["code"], "plugin_error");
}

#[tokio::test]
async fn equal_seeded_requests_at_once_are_equal() {
    let body = json!({"prompt": [4, 2], "max_tokens": 30, "temperature": 1, "seed": 42});
    let alone = post(&body).await;
    let copies = futures_util::future::join_all((0..8).map(|_| post(&body))).await;
    for copy in copies {
        assert_eq!(copy["choices"], alone["choices"]);
    }
}

#[tokio::test]
async fn requests_with_and_without_stages_join_in_any_order() {
    let long = json!({"prompt": [4, 2, 3, 4, 5, 6, 2, 3], "max_tokens": 6, "temperature": 0});
    let biased = json!({
        "prompt": [4, 3], "max_tokens": 6, "temperature": 0, "logit_bias": {"5": 1},
        "presence_penalty": 1, "repetition_penalty": 2,
    });
    let plain = json!({"prompt": [4], "max_tokens": 6, "temperature": 0});
    let bodies = [long, biased, plain];
    let mut alone = Vec::new();
    for body in &bodies {
        alone.push(post(body).await["choices"].clone());
    }
    for round in 0..50 {
        let order = [
            round % 3,
            (round + 1 + round % 2) % 3,
            (round + 2 - round % 2) % 3,
        ];
        let together = order.map(|i| post(&bodies[i]));
        let answers = futures_util::future::join_all(together).await;
        for (i, answer) in order.into_iter().zip(answers) {
            assert_eq!(answer["choices"], alone[i], "round {round}, {i}");
        }
    }
}
