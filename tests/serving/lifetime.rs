//! A server that cannot start, and one that is killed.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::component;
use crate::server::{Killable, Server};

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

/// Uploads and removals, and a kill at any moment: what was acknowledged is
/// there after the next start, whole, and nothing else is left.
#[tokio::test]
async fn nothing_acknowledged_is_lost_by_a_kill() {
    let rounds: u64 = std::env::var("SLUICE_TEST_KILLS").map_or(3, |n| n.parse().unwrap());
    let data = tempfile::tempdir().unwrap();
    let guests = [
        "force", "counter", "boost", "stop-at", "identity", "recorder",
    ];
    let guests = guests.map(|name| (name, component(&format!("tests/guests/dist/{name}.wasm"))));
    // What must be there, and what may be: the last request was under way.
    let mut certain = BTreeSet::<String>::new();
    let mut doubtful: Option<&str> = None;
    for round in 0..=rounds {
        let mut server = Killable::start(data.path());
        let (_, list) = server.client.get("/v1/plugins").await;
        let mut found: BTreeSet<_> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|plugin| plugin["builtin"] == false)
            .map(|plugin| plugin["name"].as_str().unwrap().to_owned())
            .collect();
        let files = std::fs::read_dir(data.path().join("components")).unwrap();
        assert_eq!(files.count(), found.len(), "round {round}");
        if let Some(name) = doubtful.take() {
            if found.remove(name) {
                certain.insert(name.to_owned());
            } else {
                certain.remove(name);
            }
            found = found.union(&certain).cloned().collect();
        }
        assert_eq!(found, certain, "round {round}");
        let moment = Duration::from_millis(1 + (round * 7919 % 97) * 3);
        let work = async {
            for step in 0_usize.. {
                let (name, bytes) = &guests[(round as usize * 5 + step) % guests.len()];
                doubtful = Some(name);
                if certain.contains(*name) {
                    if server.client.delete(name).await.0.is_success() {
                        certain.remove(*name);
                    }
                } else if server.client.upload(bytes.clone()).await.0.is_success() {
                    certain.insert((*name).to_owned());
                }
                doubtful = None;
            }
        };
        // The future is dropped where it waits, with `doubtful` set.
        let _ = tokio::time::timeout(moment, work).await;
        server.kill();
    }
}
