//! `--plugins FOLDER`: files that come, are being written, change and go.

use std::fs::{self, File};
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::binary::numbered;
use crate::guest;
use crate::server::{Killable, Server};

/// Waits for something to become so.
async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let patience = Duration::from_mins(1);
    let waited = tokio::time::timeout(patience, wait).await;
    waited.unwrap_or_else(|_| panic!("{what}: not within a minute"));
}

async fn version(server: &Server, reference: &str) -> Option<Value> {
    let (status, plugin) = server.get(&format!("/v1/plugins/{reference}")).await;
    (status == StatusCode::OK).then(|| plugin["version"].clone())
}

/// Waits for a line with all these words in the server's log.
async fn logged(log: &Path, words: &[&str]) {
    let is_logged = || async {
        let text = fs::read_to_string(log).unwrap();
        text.lines()
            .any(|line| words.iter().all(|word| line.contains(word)))
    };
    until(&format!("{words:?} in the log"), is_logged).await;
}

#[tokio::test]
async fn a_folder_of_plugins_is_watched() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = data.path().join("log.txt");
    let path = |name: &str| folder.path().join(name);
    let force = guest("force");
    fs::write(path("force.wasm"), &force).unwrap();
    fs::write(path("broken.wasm"), b"no plugin at all").unwrap();
    fs::write(path("notes.txt"), b"nor this").unwrap();
    let process = Killable::start_with(&data.path().join("store"), |command| {
        command.arg("--plugins").arg(folder.path());
        command.stderr(File::create(&log).unwrap());
        command.env_remove("RUST_LOG");
    });
    let server = &process.client;

    // What lies there at the start is there from the first request on.
    assert_eq!(version(server, "force").await, Some(json!("0.1.0")));
    logged(&log, &["broken.wasm is no plugin", "does not begin with"]).await;
    let body = json!({
        "prompt": "Once", "max_tokens": 3, "temperature": 0,
        "processors": [{"plugin": "force", "params": {"ids": [28]}}],
    });
    server.complete(&body).await;

    // A slow copy: half a file looks broken for a while, and then is whole.
    let boost = guest("boost");
    let (half, rest) = boost.split_at(boost.len() / 2);
    fs::write(path("boost.wasm"), half).unwrap();
    logged(&log, &["boost.wasm is no plugin", "ends within a section"]).await;
    assert_eq!(version(server, "boost").await, None);
    fs::write(path("boost.wasm"), [half, rest].concat()).unwrap();
    until("boost", || async {
        version(server, "boost").await.is_some()
    })
    .await;
    // A broken file that is mended.
    fs::write(path("broken.wasm"), guest("counter")).unwrap();
    until("counter", || async {
        version(server, "counter").await.is_some()
    })
    .await;

    // Other bytes under the version that there is: said, and without effect.
    let (_, before) = server.get("/v1/plugins/force").await;
    fs::write(
        path("force.wasm"),
        [&force[..], &[0, 3, 1, b'x', 0]].concat(),
    )
    .unwrap();
    logged(
        &log,
        &["force.wasm", "other bytes are registered as force@0.1.0"],
    )
    .await;
    let (_, after) = server.get("/v1/plugins/force").await;
    assert_eq!(after["digest"], before["digest"]);
    // A new version is taken, and the old one stays for those that name it.
    fs::write(path("force.wasm"), numbered(&force, 11)).unwrap();
    until("force@0.1.1", || async {
        version(server, "force").await == Some(json!("0.1.1"))
    })
    .await;
    assert_eq!(version(server, "force@0.1.0").await, Some(json!("0.1.0")));

    // A file that goes does not take its plugin along; the watch goes on.
    fs::remove_file(path("boost.wasm")).unwrap();
    fs::write(path("stop-at.wasm"), guest("stop-at")).unwrap();
    until("stop-at", || async {
        version(server, "stop-at").await.is_some()
    })
    .await;
    assert!(version(server, "boost").await.is_some());
    // The folder keeps them, not the store.
    let kept = fs::read_dir(data.path().join("store/components")).unwrap();
    assert_eq!(kept.count(), 0);
}
