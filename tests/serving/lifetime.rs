//! A server that cannot start, and one that is told to stop.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::events::Events;
use crate::server::{Killable, Server};

#[tokio::test]
async fn a_stream_goes_on_to_its_end_when_the_server_is_told_to_stop() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Killable::start(data.path());
    let body = json!({
        "prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": true,
    });
    let alone = server.client.complete(&body).await;
    let mut stream = Events::open(&server.client, &body).await;
    let mut text = stream.take(3).await;
    let id = Pid::from_raw(server.id().cast_signed()).unwrap();
    kill_process(id, Signal::TERM).unwrap();
    text.push_str(&stream.take(usize::MAX).await);
    assert_eq!(text, crate::server::text(&alone));
    assert_eq!(server.exit().code(), Some(0));
}

/// A busy port and a missing model: one sentence and a failure.
#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let port = Server::shared().url.rsplit(':').next().unwrap().to_owned();
    for (arguments, words) in [
        (&["--port", &port[..]][..], &port[..]),
        (
            &["--port", "0", "--model", "no/such/model.gguf"],
            "no/such/model.gguf",
        ),
        (&["--port", "0", "--model", "Cargo.toml"], "Cargo.toml"),
    ] {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(arguments)
            .output()
            .await
            .unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(words), "{error}");
        assert!(error.lines().count() <= 2, "{error}");
    }
}
