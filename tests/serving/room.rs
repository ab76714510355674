//! Room for instances: what can never have it is refused with the numbers,
//! what has none now waits for it, and then is sent away.

use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::binary::{Module, with_core_instances};
use crate::events::Events;
use crate::guest;
use crate::server::{Killable, Server, text};

/// A component over a limit that no instance could be made within.
#[tokio::test]
async fn a_component_that_can_never_fit_is_refused_with_the_numbers() {
    let server = Server::start(&[]);
    let counter = guest("counter");
    let module = || Module::of(&counter);
    for (upload, numbers) in [
        // 5,000 pages of 65,536 bytes against 256 MiB.
        (
            module().with_memories(&[5000]).embedded(),
            ["327680000", "268435456"],
        ),
        (
            module().with_memories(&[17, 1, 1, 1, 1]).embedded(),
            ["5", "4"],
        ),
        (
            module()
                .with_memories(&[&[17][..], &[0; 999]].concat())
                .embedded(),
            ["memories", "100"],
        ),
        (
            module().with_table(100_000).embedded(),
            ["elements", "65536"],
        ),
        (
            module().with_table(100_000_000).embedded(),
            ["elements", "65536"],
        ),
        (with_core_instances(&counter, 30), ["", "20"]),
    ] {
        let (status, answer) = server.upload(upload).await;
        let message = answer["error"]["message"].as_str().unwrap();
        println!("{message}");
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        assert_eq!(answer["error"]["code"], "invalid_plugin", "{answer}");
        for number in numbers {
            assert!(message.contains(number), "{number} in {message}");
        }
    }
    // A large runtime's memory fits; under a lower limit it does not.
    let large = Module::of(&guest("force"))
        .with_memories(&[40 * 16])
        .embedded();
    let (status, answer) = server.upload(large.clone()).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let body = json!({
        "prompt": "Once", "max_tokens": 3, "temperature": 0,
        "processors": [{"plugin": "force", "params": {"ids": [40, 41, 42]}}],
    });
    assert_eq!(
        server.complete(&body).await["usage"]["completion_tokens"],
        3
    );
    // The shipped grammar takes 29 MB on this model.
    let small = Server::start(&["--plugin-memory-bytes", "33554432"]);
    let (status, answer) = small.upload(large).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    for number in ["41943040", "33554432"] {
        assert!(message.contains(number), "{number} in {message}");
    }
}

/// Takes three instances, those of the default chain.
fn long() -> Value {
    json!({"prompt": "Once", "max_tokens": 2000, "temperature": 0, "ignore_eos": true})
}

fn short() -> Value {
    json!({"prompt": "Twice", "max_tokens": 2, "temperature": 0, "ignore_eos": true})
}

#[tokio::test]
async fn a_request_waits_for_room_and_has_it_when_another_ends() {
    let server = &Server::start(&["--max-instances", "4", "--plugin-wait-ms", "300000"]);
    let alone = server.complete(&short()).await;
    let mut stream = Events::open(server, &long()).await;
    stream.take(3).await;
    let body = short();
    let waiting = server.complete(&body);
    tokio::pin!(waiting);
    let early = tokio::time::timeout(Duration::from_secs(1), &mut waiting).await;
    assert!(early.is_err(), "there was no room");
    stream.take(3).await;
    drop(stream);
    assert_eq!(text(&waiting.await), text(&alone));
}

#[tokio::test]
async fn a_request_that_waits_too_long_for_room_is_sent_away_for_now() {
    let server = &Server::start(&["--max-instances", "4", "--plugin-wait-ms", "50"]);
    let mut stream = Events::open(server, &long()).await;
    stream.take(3).await;
    let (status, headers, answer) = server.post_for_headers("/v1/completions", &short()).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{answer}");
    assert_eq!(answer["error"]["code"], "overloaded", "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("all 4 plugin instances"), "{message}");
    let seconds: u32 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(seconds > 0);
    // More stages than there are places at all.
    let mut chain = vec![json!({"plugin": "rules"}); 4];
    chain.push(json!({"plugin": "sampler", "params": {"temperature": 0}}));
    let body = json!({"prompt": "Once", "max_tokens": 2, "chain": chain});
    let (status, answer) = server.post("/v1/completions", &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains('5') && message.contains('4'), "{message}");
    stream.take(3).await;
    drop(stream);
    // The room comes back with the connection, soon.
    for _ in 0..600 {
        let (status, _) = server.post("/v1/completions", &short()).await;
        if status == StatusCode::OK {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the instances of a stream that was hung up on are in use");
}

/// One thread answers HTTP here. What waits for a guest must not hold it, and
/// what cuts a guest off must not wait for it.
#[tokio::test]
async fn a_hundred_plugin_requests_at_once_on_one_thread() {
    let data = tempfile::tempdir().unwrap();
    let process = Killable::start_with(data.path(), |command| {
        command.env("TOKIO_WORKER_THREADS", "1");
        command.args(["--plugin-max-faults", "0", "--plugin-wait-ms", "300000"]);
        // The machine may be busy with other things.
        command.args(["--plugin-call-ms", "500"]);
    });
    let server = &process.client;
    for name in ["force", "misbehave-token"] {
        assert_eq!(server.upload(guest(name)).await.0, StatusCode::CREATED);
    }
    // Equal prompts: each has a state of its own, told apart by nothing else.
    let body = json!({
        "prompt": "The same words", "max_tokens": 4, "ignore_eos": true, "logprobs": 0,
        "processors": [{"plugin": "force", "params": {"ids": [40, 41, 42]}}], "temperature": 0,
    });
    let alone = server.complete(&body).await;
    // So many at once may be sent away for now: 64 wait for their opening.
    let ask = async || loop {
        let (status, answer) = server.post("/v1/completions", &body).await;
        if status != StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(status, StatusCode::OK, "{answer}");
            return answer;
        }
        assert_eq!(answer["error"]["code"], "overloaded", "{answer}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    for _ in 0..2 {
        let answers = join_all((0..100).map(|_| ask())).await;
        for answer in answers {
            assert_eq!(answer["choices"], alone["choices"]);
        }
    }
    // Twenty that never return, each cut off, and the health told meanwhile.
    let spin = json!({
        "prompt": "The faulty one", "max_tokens": 30, "temperature": 0,
        "processors": [{"plugin": "misbehave-token", "params": {"fault": "spin", "after": 2}}],
    });
    let spinning = join_all((0..20).map(|_| server.post("/v1/completions", &spin)));
    let health = async {
        for _ in 0..20 {
            assert_eq!(server.get("/health").await.0, StatusCode::OK);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (answers, (), beside) = tokio::join!(spinning, health, server.complete(&body));
    assert_eq!(beside["choices"], alone["choices"]);
    for (status, answer) in answers {
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("misbehave-token"), "{message}");
        assert!(message.contains("longer than its limit"), "{message}");
    }
}
