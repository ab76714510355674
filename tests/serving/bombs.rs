//! Uploads that would take a server down if it compiled them itself.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::binary::{Module, module_of_circular_packages, nested_loops, small_function};
use crate::events::Events;
use crate::guest;
use crate::server::{Server, text};

fn story() -> Value {
    json!({
        "prompt": "The history of the city of Rome begins", "max_tokens": 60,
        "temperature": 0, "ignore_eos": true, "repetition_penalty": 1.1,
    })
}

/// Each is cut off by a limit, which is lower here than by default, and
/// refused with its number, while another request streams.
#[tokio::test]
async fn what_cannot_be_compiled_is_cut_off_while_others_are_served() {
    let server = Server::start(&[
        "--plugin-compile-s",
        "2",
        "--plugin-compile-bytes",
        "536870912",
    ]);
    let alone = server.complete(&story()).await;
    let module = || Module::of(&guest("counter"));
    let slow = module().with_functions(1, |_| nested_loops()).embedded();
    assert!(slow.len() < 200_000, "small: {}", slow.len());
    let large = module().with_functions(900_000, small_function).embedded();
    assert!(
        (9_000_000..12_000_000).contains(&large.len()),
        "{}",
        large.len()
    );
    let circle = module_of_circular_packages(&guest("counter"));
    for (name, bomb, words) in [
        (
            "300 loops",
            slow,
            &["512 MiB of memory", "2 s of processor time"][..],
        ),
        (
            "900,000 functions",
            large,
            &["512 MiB of memory", "2 s of processor time"],
        ),
        // Five kilobytes, found by fuzzing.
        (
            "gigabytes to read it",
            include_bytes!("memory.wasm").to_vec(),
            &["512 MiB of memory"],
        ),
        (
            "packages in a circle",
            circle,
            &["the compiler failed on the component"],
        ),
    ] {
        let mut stream = Events::open(&server, &story()).await;
        let uploading = server.upload(bomb);
        let ((status, answer), streamed) = tokio::join!(uploading, stream.take(usize::MAX));
        assert_eq!(status, StatusCode::BAD_REQUEST, "{name}: {answer}");
        assert_eq!(
            answer["error"]["code"], "invalid_plugin",
            "{name}: {answer}"
        );
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            words.iter().any(|word| message.contains(word)),
            "{name}: {message}"
        );
        assert_eq!(streamed, text(&alone), "{name}");
        let (status, list) = server.get("/v1/plugins").await;
        assert_eq!(status, StatusCode::OK);
        let listed = list["data"].as_array().unwrap();
        assert!(
            listed.iter().all(|plugin| plugin["builtin"] == true),
            "{name}"
        );
    }
    // The next honest upload is taken.
    let (status, answer) = server.upload(guest("counter")).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}
