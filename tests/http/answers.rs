//! What is answered, plain and streamed.

use axum::http::StatusCode;
use serde_json::{Value, json};
use sluice::engine::EngineConfig;

use super::server::{Server, Setup};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A chat in which the model says `answer`.
fn chat(answer: &str) -> Value {
    json!({
        "messages": [{"role": "user", "content": answer}],
        "chat_template_kwargs": {"suffix": "\n"},
        "temperature": 0,
    })
}

fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    body
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn a_chat_is_answered_as_openai_does() {
    let answer = Server::shared().post(CHAT, &chat("ab")).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.header("x-request-id").unwrap().starts_with("req-"));
    insta::assert_snapshot!(answer.redacted(), @r#"{"id":"chatcmpl-…","object":"chat.completion","created":0,"model":"scripted","choices":[{"index":0,"message":{"role":"assistant","content":"ab","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}"#);
}

#[tokio::test]
async fn a_completion_is_answered_as_openai_does() {
    let body = json!({"prompt": "abcd\n", "temperature": 0, "max_tokens": 3});
    let answer = Server::shared().post(COMPLETIONS, &body).await;
    insta::assert_snapshot!(answer.redacted(), @r#"{"id":"cmpl-…","object":"text_completion","created":0,"model":"scripted","choices":[{"text":"abc","index":0,"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}"#);
}

#[tokio::test]
async fn a_streamed_chat_opens_with_the_role_and_ends_with_done() {
    let body = with(chat("ab"), &json!({"stream": true}));
    let answer = Server::shared().post(CHAT, &body).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    insta::assert_snapshot!(answer.redacted(), @r#"
    data: {"id":"chatcmpl-…","object":"chat.completion.chunk","created":0,"model":"scripted","choices":[{"index":0,"delta":{"role":"assistant"},"logprobs":null,"finish_reason":null}]}

    data: {"id":"chatcmpl-…","object":"chat.completion.chunk","created":0,"model":"scripted","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]}

    data: {"id":"chatcmpl-…","object":"chat.completion.chunk","created":0,"model":"scripted","choices":[{"index":0,"delta":{"content":"b"},"logprobs":null,"finish_reason":null}]}

    data: {"id":"chatcmpl-…","object":"chat.completion.chunk","created":0,"model":"scripted","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}

    data: [DONE]
    "#);
}

#[tokio::test]
async fn usage_comes_in_a_chunk_of_its_own() {
    let body = json!({
        "prompt": "a\n", "temperature": 0, "stream": true, "stream_options": {"include_usage": true},
    });
    let answer = Server::shared().post(COMPLETIONS, &body).await;
    insta::assert_snapshot!(answer.redacted(), @r#"
    data: {"id":"cmpl-…","object":"text_completion","created":0,"model":"scripted","choices":[{"text":"a","index":0,"logprobs":null,"finish_reason":null}],"usage":null}

    data: {"id":"cmpl-…","object":"text_completion","created":0,"model":"scripted","choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}],"usage":null}

    data: {"id":"cmpl-…","object":"text_completion","created":0,"model":"scripted","choices":[],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}

    data: [DONE]
    "#);
}

#[tokio::test]
async fn an_answer_of_only_the_end_token_is_empty_and_finished() {
    let server = Server::shared();
    assert_eq!(
        server.completed(json!({"prompt": "\n"})).await,
        (String::new(), "stop".into(), 0)
    );
    let answer = server
        .post(CHAT, &with(chat(""), &json!({"stream": true})))
        .await;
    let events = answer.events();
    assert_eq!(events.len(), 3, "role, finish, done: {}", answer.text);
    let finish: Value = serde_json::from_str(events[1]).unwrap();
    assert_eq!(finish["choices"][0]["delta"], json!({}));
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[2], "[DONE]");
}

#[tokio::test]
async fn own_stops_do_not_replace_the_end_token() {
    let server = Server::shared();
    let fields = json!({"prompt": "a<eos>b\n", "stop": ["dd"]});
    assert_eq!(
        server.completed(fields).await,
        ("a".into(), "stop".into(), 1)
    );
    let fields = json!({"prompt": "adb\n", "stop_token_ids": [7]});
    assert_eq!(
        server.completed(fields).await,
        ("a".into(), "stop".into(), 1)
    );
}

#[tokio::test]
async fn stop_strings_are_found_across_tokens_and_never_shown() {
    let server = Server::shared();
    for stop in [
        json!("bc"),
        json!(["bc"]),
        json!(["dd", "bc"]),
        json!(["bcd", "bc"]),
    ] {
        let fields = json!({"prompt": "abcd\n", "stop": stop});
        assert_eq!(
            server.completed(fields.clone()).await,
            ("a".into(), "stop".into(), 1),
            "{stop}"
        );
        assert_eq!(server.deltas(fields).await.concat(), "a", "{stop}");
    }
    // Held back while a match is possible, shown when it is not.
    let deltas = server
        .deltas(json!({"prompt": "abdbc\n", "stop": "bc"}))
        .await;
    assert_eq!(deltas, strings(&["a", "bd"]));
    // The string wins over the length, which shows what was held back.
    let fields = json!({"prompt": "abc\n", "stop": "bc", "max_tokens": 3});
    assert_eq!(
        server.completed(fields).await,
        ("a".into(), "stop".into(), 1)
    );
    let fields = json!({"prompt": "abc\n", "stop": "bc", "max_tokens": 2});
    assert_eq!(
        server.completed(fields).await,
        ("ab".into(), "length".into(), 2)
    );
    let answer = server
        .complete(json!({"prompt": "abc\n", "stop": ["c", "bc"]}))
        .await;
    assert_eq!(
        answer["choices"][0]["stop_reason"], "bc",
        "together the longest wins: {answer}"
    );
    for stop in [json!(null), json!([])] {
        let fields = json!({"prompt": "ab\n", "stop": stop});
        assert_eq!(
            server.completed(fields).await,
            ("ab".into(), "stop".into(), 2)
        );
    }
}

#[tokio::test]
async fn characters_are_shown_whole() {
    let server = Server::shared();
    let prompt = json!({"prompt": [8, 9, 2, 5, 10, 11, 6]});
    assert_eq!(
        server.completed(prompt.clone()).await,
        ("😀a あ".into(), "stop".into(), 6)
    );
    let deltas = server.deltas(prompt).await;
    assert_eq!(deltas, strings(&["😀", "a", " ", "あ"]));
    let cut = json!({"prompt": [2, 8, 6]});
    assert_eq!(server.completed(cut).await.0, "a\u{fffd}");
}

#[tokio::test]
async fn lengths_end_at_max_tokens_or_the_context() {
    let server = Server::shared();
    for (max_tokens, text) in [(1, "a"), (2, "aa"), (3, "aaa")] {
        let fields = json!({"prompt": "a", "max_tokens": max_tokens});
        assert_eq!(
            server.completed(fields).await,
            (text.into(), "length".into(), max_tokens)
        );
    }
    for max_tokens in [json!(null), json!(100), json!(1_000_000_000_000_u64)] {
        let fields = json!({"prompt": "aaaa", "max_tokens": max_tokens});
        let (_, reason, tokens) = server.completed(fields).await;
        assert_eq!((reason.as_str(), tokens), ("length", 60));
    }
    let fields = json!({"prompt": "a".repeat(63), "max_tokens": 100});
    assert_eq!(
        server.completed(fields).await,
        ("a".into(), "length".into(), 1)
    );
}

#[tokio::test]
async fn penalties_and_bias_act_under_temperature_0_on_every_route() {
    let server = Server::shared();
    let penalty = json!({"frequency_penalty": 2, "max_tokens": 4});
    let fields = with(json!({"prompt": "d"}), &penalty);
    assert_eq!(server.completed(fields.clone()).await.0, "abab");
    assert_eq!(server.deltas(fields).await.concat(), "abab");
    let body = json!({"messages": [{"role": "user", "content": "d"}], "temperature": 0});
    let answer = server.post(CHAT, &with(body, &penalty)).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "abab");

    // The prompt's words were never said: no penalty on the first token.
    let fields = json!({
        "prompt": "aaaaaaaa", "presence_penalty": 2, "frequency_penalty": 2, "max_tokens": 1,
    });
    assert_eq!(server.completed(fields).await.0, "a");
    // Repetition counts them: 4 / 1.1 is below 3.9.
    let fields = json!({"prompt": "a", "repetition_penalty": 1.1, "max_tokens": 1});
    assert_eq!(server.completed(fields).await.0, "b");

    for (bias, text) in [
        (json!({"2": -100}), "bbb"),
        (json!({"7": 100}), "ddd"),
        (json!({}), "aaa"),
        (json!(null), "aaa"),
    ] {
        let fields = json!({"prompt": "d", "logit_bias": bias, "max_tokens": 3});
        assert_eq!(server.completed(fields).await.0, text, "{bias}");
    }
    let fields = json!({"prompt": "d", "allowed_token_ids": [4], "max_tokens": 2});
    assert_eq!(server.completed(fields).await.0, "cc");
    let fields = json!({"prompt": "d", "repeat_penalty": 1.0, "bad_words": ["a"], "max_tokens": 2});
    assert_eq!(server.completed(fields).await.0, "bb");
}

#[tokio::test]
async fn neutral_values_change_nothing() {
    let server = Server::shared();
    let fields = json!({"prompt": "a", "max_tokens": 20, "temperature": 1, "seed": 7});
    let neutral = json!({
        "repetition_penalty": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "top_k": 0,
        "top_p": 1, "min_p": 0, "logit_bias": {}, "min_tokens": 0, "n": 1, "best_of": 1, "user": "ann",
    });
    let plain = server.complete(fields.clone()).await;
    let answer = server.complete(with(fields.clone(), &neutral)).await;
    assert_eq!(answer["choices"], plain["choices"]);
    for top_k in [
        json!(-1),
        json!(12),
        json!(1_000_000_000_000_u64),
        json!(1e12),
    ] {
        let answer = server
            .complete(with(fields.clone(), &json!({"top_k": top_k})))
            .await;
        assert_eq!(answer["choices"], plain["choices"], "{top_k}");
    }
}

#[tokio::test]
async fn min_tokens_holds_off_every_end() {
    let server = Server::shared();
    // The end is banned twice; the others are equal, so the first id wins.
    let fields = json!({"prompt": "ab\n", "min_tokens": 4});
    let (_, reason, tokens) = server.completed(fields).await;
    assert_eq!((reason.as_str(), tokens), ("stop", 4));
    let fields = json!({"prompt": "abab\n", "min_tokens": 3, "stop": "b"});
    assert_eq!(server.completed(fields).await.0, "aba");
    // The same when a chain names the stage; null is as absent there too.
    let fields = json!({
        "prompt": "abab\n", "stop": "b", "temperature": null,
        "chain": [
            {"plugin": "rules", "params": {"min_tokens": 3, "bad_words": null}},
            {"plugin": "sampler", "params": {"temperature": 0}},
        ],
    });
    assert_eq!(server.completed(fields).await.0, "aba");
}

#[tokio::test]
async fn a_seed_decides_and_is_named() {
    let server = Server::shared();
    let body =
        |seed: Value| json!({"prompt": "a", "max_tokens": 50, "temperature": 1, "seed": seed});
    let mut texts = Vec::new();
    for seed in [json!(0), json!(-1), json!(i64::MAX), json!(i64::MIN)] {
        let first = server.post(COMPLETIONS, &body(seed.clone())).await;
        let again = server.post(COMPLETIONS, &body(seed.clone())).await;
        assert_eq!(
            first.header("x-sluice-seed"),
            Some(seed.to_string().as_str())
        );
        assert_eq!(first.json()["choices"], again.json()["choices"], "{seed}");
        texts.push(first.json()["choices"][0]["text"].clone());
    }
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");

    let unseeded = server.post(COMPLETIONS, &body(json!(null))).await;
    let other = server.post(COMPLETIONS, &body(json!(null))).await;
    assert_ne!(unseeded.json()["choices"], other.json()["choices"]);
    let seed: i64 = unseeded.header("x-sluice-seed").unwrap().parse().unwrap();
    let again = server.post(COMPLETIONS, &body(json!(seed))).await;
    assert_eq!(again.json()["choices"], unseeded.json()["choices"]);
}

#[tokio::test]
async fn choices_are_numbered_and_counted_together() {
    let server = Server::shared();
    let answer = server.complete(json!({"prompt": "ab\n", "n": 3})).await;
    let choices: Vec<_> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| {
            (
                choice["index"].as_u64().unwrap(),
                choice["text"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(choices, [(0, "ab"), (1, "ab"), (2, "ab")]);
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        }})
    );

    // A prompt that is in the cache counts once, whoever shares it.
    let body = |stream: bool| {
        json!({
            "prompt": "d".repeat(24), "n": 2, "max_tokens": 2, "stream": stream,
            "stream_options": stream.then(|| json!({"include_usage": true})),
        })
    };
    for cached in [0, 23] {
        let usage = server.complete(body(false)).await["usage"].take();
        assert_eq!(usage["prompt_tokens"], 24);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached);
    }
    let answer = server.post(COMPLETIONS, &body(true)).await;
    let last: Value = serde_json::from_str(answer.events().iter().nth_back(1).unwrap()).unwrap();
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 23);

    // Each has a stage state of its own, and chance of its own.
    let answer = server
        .complete(
            json!({"prompt": "a", "n": 3, "max_tokens": 3, "processors": [{"plugin": "counter"}]}),
        )
        .await;
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["text"], "abc");
    }
    let answer = server
        .complete(json!({"prompt": "a", "n": 2, "max_tokens": 50, "temperature": 1, "seed": 1}))
        .await;
    assert_ne!(answer["choices"][0]["text"], answer["choices"][1]["text"]);

    let body = json!({
        "prompt": "ab\n", "n": 2, "temperature": 0, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let streamed = server.post(COMPLETIONS, &body).await;
    let events = streamed.events();
    let usages: Vec<Value> = events
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .filter(|chunk| !chunk["usage"].is_null())
        .collect();
    assert_eq!(usages.len(), 1);
    assert_eq!(usages[0]["choices"], json!([]));
    assert_eq!(usages[0]["usage"]["completion_tokens"], 4);
    for index in 0..2 {
        let text: String = events
            .iter()
            .filter_map(|event| serde_json::from_str::<Value>(event).ok())
            .filter(|chunk| chunk["choices"][0]["index"] == index)
            .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(text, "ab");
    }
}

#[tokio::test]
async fn several_prompts_are_several_choices() {
    let server = Server::shared();
    for prompt in [json!(["ab\n", "c\n"]), json!([[2, 3, 6], [4, 6]])] {
        let answer = server.complete(json!({"prompt": prompt, "n": 2})).await;
        let texts: Vec<_> = answer["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, ["ab", "ab", "c", "c"]);
        assert_eq!(
            answer["usage"],
            json!({"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11,
                "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {
                "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
            }})
        );
    }
    // A prompt's chance does not depend on the prompts beside it.
    let fields = json!({"max_tokens": 30, "temperature": 1, "seed": 3});
    let alone = server.complete(with(json!({"prompt": "b"}), &fields)).await;
    let beside = server
        .complete(with(json!({"prompt": ["a", "b"]}), &fields))
        .await;
    assert_eq!(beside["choices"][1]["text"], alone["choices"][0]["text"]);
}

#[tokio::test]
async fn messages_of_every_accepted_form_are_answered() {
    let server = Server::shared();
    let body = json!({
        "model": null, "max_tokens": null, "stream": false, "temperature": 0,
        "chat_template_kwargs": {"suffix": "\n"},
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "refusal": null, "annotations": [], "tool_calls": null},
            {"role": "user", "content": "d", "name": "ann"},
        ],
    });
    let answer = server.post(CHAT, &body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "abcd");
    let body = with(
        body,
        &json!({"model": "scripted", "max_completion_tokens": 2}),
    );
    let answer = server.post(CHAT, &body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "ab");
}

#[tokio::test]
async fn ignored_fields_are_named_in_a_header() {
    let server = Server::shared();
    let body = json!({"prompt": "a\n", "user": "ann", "metadata": {"a": "b"}, "store": null});
    let answer = server.post(COMPLETIONS, &body).await;
    assert_eq!(answer.header("x-sluice-ignored"), Some("user, metadata"));
    let answer = server.post(COMPLETIONS, &json!({"prompt": "a\n"})).await;
    assert_eq!(answer.header("x-sluice-ignored"), None);
}

#[tokio::test]
async fn models_health_and_metrics_are_answered() {
    let server = Server::shared();
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "scripted");
    assert_eq!(
        server.get("/v1/models/scripted").await.json(),
        list["data"][0]
    );
    let missing = server.get("/v1/models/a/b").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert_eq!(missing.json()["error"]["code"], "model_not_found");
    // Its other name, and one that it has not got.
    assert_eq!(list["data"][1]["id"], "also-scripted");
    assert_eq!(
        server.get("/v1/models/also-scripted").await.json(),
        list["data"][1]
    );
    let body = json!({"model": "also-scripted", "prompt": "a\n"});
    let answer = server.post(COMPLETIONS, &body).await;
    assert_eq!(answer.json()["model"], "scripted");
    let body = json!({"model": "other", "prompt": "a\n"});
    let refused = server.post(COMPLETIONS, &body).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND);
    let message = &refused.json()["error"]["message"];
    assert_eq!(
        message,
        "there is no model \"other\"; this server has loaded `scripted`, also called \
         `also-scripted`, and one model at a time"
    );
    assert_eq!(server.get("/health").await.json()["status"], "ok");
    let metrics = server.get("/metrics").await;
    assert!(
        metrics
            .text
            .contains("# TYPE sluice_sequences_running gauge\n"),
        "{}",
        metrics.text
    );
}

#[tokio::test]
async fn drafts_change_no_answer() {
    let start = |draft_rows: usize| {
        Server::start(&Setup {
            engine: EngineConfig {
                draft_rows,
                ..EngineConfig::default()
            },
            ..Setup::default()
        })
    };
    let (drafting, plain) = (start(8), start(0));
    let mut drafted = [0, 0];
    for fields in [
        json!({"temperature": 0}),
        json!({"temperature": 0, "logit_bias": {"2": -100}}),
        json!({"temperature": 0, "presence_penalty": 1, "frequency_penalty": 0.5}),
        json!({"temperature": 0, "repetition_penalty": 1.1, "repetition_context_size": 5}),
        json!({"temperature": 0, "no_repeat_ngram_size": 4}),
        json!({"temperature": 0, "dry_multiplier": 0.8}),
        json!({"temperature": 0.3, "seed": 7, "n": 3, "logprobs": 2}),
        json!({"temperature": 0.1, "seed": 8, "stop": "aab"}),
        json!({"temperature": 0, "processors": [{"plugin": "force", "params": {"ids": [3, 2, 3]}}]}),
        json!({"temperature": 0, "processors": [{"plugin": "counter"}]}),
        json!({"temperature": 0, "guided_regex": "(ab|aad)*c"}),
    ] {
        let body = with(json!({"prompt": "abaabab", "max_tokens": 40}), &fields);
        let (got, expected) = (
            drafting.post(COMPLETIONS, &body).await.json(),
            plain.post(COMPLETIONS, &body).await.json(),
        );
        assert_eq!(got["choices"], expected["choices"], "{fields}");
        assert_eq!(got["error"], expected["error"], "{fields}");
        let total = |answer: &Value| answer["usage"]["total_tokens"].clone();
        assert_eq!(total(&got), total(&expected), "{fields}");
        for (sum, name) in drafted.iter_mut().zip(["accepted", "rejected"]) {
            let name = format!("{name}_prediction_tokens");
            let details = &got["usage"]["completion_tokens_details"];
            *sum += details[&name].as_u64().unwrap_or(0);
            let none = &expected["usage"]["completion_tokens_details"];
            assert_eq!(none[&name].as_u64().unwrap_or(0), 0);
        }
    }
    assert!(drafted.iter().all(|&n| n > 0), "{drafted:?}");
}
