//! A server that cannot start.

use crate::server::Server;

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
