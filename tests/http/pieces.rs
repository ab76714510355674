//! Failures of other servers where a token is not a character, and where a
//! prompt is short or odd. `tests/CASES.md` lists them with the reports.

use std::sync::OnceLock;

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use sluice::engine::TokenId;

use super::server::{EOS, NEWLINE, PIECES, Server, Setup};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// 0x80, which begins no character.
const CONTINUATION: TokenId = 27;
/// A space and the first byte of あ.
const SPACE_AND_HALF: TokenId = 29;

/// What follows the usual pieces.
const MORE_PIECES: [&[u8]; 18] = [
    b"ABC", b"DEF", b"G", b"HI", b"J", b" L", b" M", b" N", b" O", b" P", b" Q", b" R", b"x",
    b">>>UPD", b"ATED", b"\x80", b"I", b" \xe3",
];

/// Says what the prompt says before its newline; without one, `a` while the
/// context has exactly one `<bos>`, in front, and `b` otherwise.
fn script(context: &[TokenId]) -> Vec<f32> {
    let mut row = vec![0.0; PIECES.len() + MORE_PIECES.len()];
    let next = match context.iter().position(|&id| id == NEWLINE) {
        Some(end) => {
            let said = context.len() - end - 1;
            context[..end].get(said).copied().unwrap_or(EOS)
        }
        None if context[0] == 0 && !context[1..].contains(&0) => 2,
        None => 3,
    };
    row[next as usize] = 10.0;
    row
}

fn pieces() -> Vec<Vec<u8>> {
    [&PIECES[..], &MORE_PIECES]
        .concat()
        .iter()
        .map(|piece| piece.to_vec())
        .collect()
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        Server::start(&Setup {
            script,
            pieces: pieces(),
            template: "<bos>{% for m in messages %}{{ m.content }}{% endfor %}".into(),
            ..Setup::default()
        })
    })
}

fn with(mut body: Value, fields: &Value) -> Value {
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

/// The choice of a model that says these tokens, which is the same streamed,
/// without an empty text on the way.
async fn said(ids: &[TokenId], fields: &Value) -> Value {
    let prompt = [ids, &[NEWLINE]].concat();
    let body = with(json!({"prompt": prompt, "temperature": 0}), fields);
    let plain = server().post(COMPLETIONS, &body).await;
    assert_eq!(plain.status, StatusCode::OK, "{body}\n{}", plain.text);
    let choice = plain.json()["choices"][0].take();
    let body = with(body, &json!({"stream": true}));
    let streamed = server().post(COMPLETIONS, &body).await;
    let (last, events) = streamed
        .events()
        .split_last()
        .map(|(l, e)| (*l, e.to_vec()))
        .unwrap();
    assert_eq!(last, "[DONE]");
    let chunk = |event: &&str| serde_json::from_str::<Value>(event).unwrap()["choices"][0].take();
    let mut chunks: Vec<Value> = events.iter().map(chunk).collect();
    let end = chunks.pop().unwrap();
    assert_eq!(end["finish_reason"], choice["finish_reason"]);
    assert_eq!(end["stop_reason"], choice["stop_reason"]);
    let texts = chunks.iter().map(|chunk| chunk["text"].as_str().unwrap());
    assert!(
        texts.clone().all(|text| !text.is_empty()),
        "{}",
        streamed.text
    );
    let whole = texts.collect::<String>() + end["text"].as_str().unwrap();
    assert_eq!(whole, choice["text"].as_str().unwrap(), "{ids:?} {fields}");
    choice
}

#[tokio::test]
async fn stop_strings_are_found_in_and_over_pieces() {
    for (ids, stop, text, found, tokens) in [
        (
            &[12, 13, 14, 15, 16][..],
            json!(["DEFGHIJ"]),
            "ABC",
            "DEFGHIJ",
            1,
        ),
        (
            &[17, 18, 19, 20, 21, 22, 23],
            json!(["O P Q"]),
            " L M N ",
            "O P Q",
            4,
        ),
        (
            &[24, 25, 26],
            json!([">>>UPDATED", ">>>UPDATED\n"]),
            "x",
            ">>>UPDATED",
            1,
        ),
        (&[2, 3, 28, 4], json!("I"), "ab", "I", 2),
        (&[2, 15, 4], json!(["I"]), "aH", "I", 2),
    ] {
        let choice = said(ids, &json!({"stop": stop, "logprobs": 1})).await;
        assert_eq!(choice["text"], text, "{stop}");
        assert_eq!(choice["finish_reason"], "stop", "{stop}");
        assert_eq!(choice["stop_reason"], found, "{stop}");
        // One entry for each token that shows a byte, and no other.
        let entries = choice["logprobs"]["tokens"].as_array().unwrap();
        assert_eq!(entries.len(), tokens, "{choice}");
    }
}

#[tokio::test]
async fn text_is_the_same_streamed_and_not_whatever_its_bytes() {
    let (mut random, pieces) = (1_u32, pieces());
    let byte_pieces = [8, 9, 10, 11, 2, 5, CONTINUATION, SPACE_AND_HALF];
    for _ in 0..200 {
        let mut next = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((random >> 16) % below) as usize
        };
        let ids: Vec<TokenId> = (0..=next(12)).map(|_| byte_pieces[next(8)]).collect();
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| pieces[id as usize].clone())
            .collect();
        let choice = said(&ids, &json!({})).await;
        assert_eq!(choice["text"], *String::from_utf8_lossy(&bytes), "{ids:?}");
    }
    for (ids, text) in [
        (&[8, 9, 2][..], "😀a"),
        (&[SPACE_AND_HALF, 11], " あ"),
        (&[10, 11, 10, 11], "ああ"),
        (&[CONTINUATION, 2], "\u{fffd}a"),
    ] {
        assert_eq!(said(ids, &json!({})).await["text"], text);
    }
}

#[tokio::test]
async fn short_prompts_are_answered() {
    for prompt in [
        json!("a"),
        json!("ab"),
        json!("abc"),
        json!(" "),
        json!([2]),
        json!([[2]]),
    ] {
        let body = json!({"prompt": prompt, "max_tokens": 2, "temperature": 0});
        let answer = server().post(COMPLETIONS, &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{prompt}: {}", answer.text);
        assert_eq!(answer.json()["choices"][0]["text"], "bb", "{prompt}");
    }
    let answer = server()
        .complete(json!({"prompt": " ", "max_tokens": 1}))
        .await;
    assert_eq!(answer["usage"]["prompt_tokens"], 1);
}

/// The template writes the begin token; the tokenizer does not write another.
/// One that a client types stands where it was typed.
#[tokio::test]
async fn a_prompt_begins_once() {
    let body = json!({"messages": [{"role": "user", "content": "d"}], "max_tokens": 1,
        "temperature": 0});
    let answer = server().post(CHAT, &body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "a", "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    for (prompt, text, tokens) in [("<bos>d", "a", 2), ("d", "b", 1), ("<bos><bos>d", "b", 3)] {
        let answer = server()
            .complete(json!({"prompt": prompt, "max_tokens": 1}))
            .await;
        assert_eq!(answer["choices"][0]["text"], text, "{prompt}");
        assert_eq!(answer["usage"]["prompt_tokens"], tokens, "{prompt}");
    }
}

#[tokio::test]
async fn messages_that_are_none_are_refused_by_their_place() {
    for (messages, param) in [
        (json!([]), "messages"),
        (json!([{"role": "x", "content": "a"}]), "messages[0].role"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (
            json!([{"role": "user", "content": null}]),
            "messages[0].content",
        ),
        (json!(["a"]), "messages[0]"),
    ] {
        for stream in [false, true] {
            let body = json!({"messages": messages, "stream": stream});
            let answer = server().post(CHAT, &body).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{messages}");
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert_eq!(answer.json()["error"]["param"], param, "{messages}");
        }
    }
}

/// What clients send for what they do not set.
#[tokio::test]
async fn null_is_as_absent_on_both_routes_streamed_and_not() {
    for stream in [json!(false), json!(true), json!(null)] {
        let fields = json!({"model": null, "temperature": 0, "max_tokens": null, "n": null,
            "stop": null, "seed": null, "logprobs": null, "stream_options": null,
            "stream": stream});
        let chat = json!({"messages": [{"role": "user", "content": "dd"}]});
        let completion = json!({"prompt": "dd"});
        for (path, body) in [(CHAT, chat), (COMPLETIONS, completion)] {
            let answer = server().post(path, &with(body, &fields)).await;
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
            // Up to the context, of which the prompt has its part.
            assert!(answer.text.contains("\"finish_reason\":\"length\""));
            assert_eq!(answer.text.contains("[DONE]"), stream == json!(true));
        }
    }
}

#[tokio::test]
async fn requests_of_one_batch_end_at_their_own_lengths() {
    let of = |n: u64| async move {
        let found = server()
            .completed(json!({"prompt": "d", "max_tokens": n}))
            .await;
        assert_eq!(found, ("b".repeat(n as usize), "length".into(), n));
    };
    for _ in 0..10 {
        tokio::join!(of(1), of(2), of(3), of(4));
    }
}

/// One chunk of usage for a request, the last before `[DONE]`, with the
/// figures of the plain answer, however the answer ends.
#[tokio::test]
async fn streamed_usage_is_that_of_the_plain_answer() {
    let messages = json!({"messages": [{"role": "user", "content": "d"}]});
    for (path, body) in [
        (
            COMPLETIONS,
            json!({"prompt": [2, 3, 4, NEWLINE], "stop": "bc"}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": [2, 3, 4, NEWLINE], "max_tokens": 2}),
        ),
        (COMPLETIONS, json!({"prompt": [2, 3, 4, NEWLINE], "n": 2})),
        (
            COMPLETIONS,
            json!({"prompt": [[2, NEWLINE], [3, 4, NEWLINE]], "n": 2}),
        ),
        (
            CHAT,
            with(messages.clone(), &json!({"max_tokens": 3, "n": 2})),
        ),
        (
            CHAT,
            with(messages, &json!({"max_tokens": 9, "stop": ["aaa"]})),
        ),
    ] {
        let body = with(body, &json!({"temperature": 0}));
        let plain = server().post(path, &body).await.json();
        for asked in [true, false] {
            let streaming = json!({"stream": true, "stream_options": {"include_usage": asked}});
            let answer = server().post(path, &with(body.clone(), &streaming)).await;
            let (done, events) = answer
                .events()
                .split_last()
                .map(|(l, e)| (*l, e.to_vec()))
                .unwrap();
            assert_eq!(done, "[DONE]");
            let parse = |event: &&str| serde_json::from_str::<Value>(event).unwrap();
            let chunks: Vec<Value> = events.iter().map(parse).collect();
            let of_usage = chunks.iter().filter(|chunk| !chunk["usage"].is_null());
            let of_usage: Vec<_> = of_usage.collect();
            if asked {
                assert_eq!(of_usage.len(), 1, "{}", answer.text);
                let last = chunks.last().unwrap();
                assert_eq!(last["choices"], json!([]));
                for figure in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                    assert_eq!(last["usage"][figure], plain["usage"][figure], "{body}");
                }
                assert!(chunks.iter().all(|chunk| chunk.get("usage").is_some()));
            } else {
                assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
            }
        }
    }
}

#[tokio::test]
async fn bytes_of_other_encodings_and_control_characters_hurt_nobody() {
    let latin_1 = b"{\"prompt\": \"caf\xe9\"}";
    let answer = server()
        .send(Method::POST, COMPLETIONS, latin_1.to_vec())
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json()["error"]["code"], "invalid_body");
    // A NUL is a character like another, of which this vocabulary has no token.
    for prompt in ["\0", "\u{1b}", "é", "a\0b"] {
        let body = json!({"prompt": prompt, "max_tokens": 1});
        let answer = server().post(COMPLETIONS, &body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"], "prompt");
    }
    let found = server()
        .completed(json!({"prompt": "d", "max_tokens": 1}))
        .await;
    assert_eq!(found.0, "b");
}
