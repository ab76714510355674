//! A version is pushed, another removed, while a long answer streams.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::binary::replaced;
use crate::component;
use crate::events::Events;
use crate::server::{Killable, Server, text};

/// Two versions of one plugin: the shipped penalties under another name, and
/// ones that count the prompt too.
fn versions() -> [Vec<u8>; 2] {
    let first = component("plugins/dist/penalties.wasm");
    let second = component("tests/guests/dist/mutant-penalties.wasm");
    [first, second].map(|bytes| replaced(&bytes, "penalties", "penance-s"))
}

fn request(plugin: &str, max_tokens: u32) -> Value {
    json!({
        "prompt": "one two three one two three one two three one two",
        "max_tokens": max_tokens,
        "chain": [
            {"plugin": "rules", "params": {"ignore_eos": true}},
            {"plugin": plugin, "params": {"frequency_penalty": 0.4, "presence_penalty": 0.4}},
            {"plugin": "sampler", "params": {"temperature": 0}},
        ],
    })
}

/// The code of uploads that a server has in its memory.
#[cfg(target_os = "linux")]
fn loaded(server: &Killable) -> std::collections::BTreeSet<String> {
    let mapped = crate::process::Process(server.id()).mapped();
    mapped
        .into_iter()
        .filter(|path| path.contains(".cwasm"))
        .map(|path| path.trim_end_matches(" (deleted)").to_owned())
        .collect()
}

#[tokio::test]
async fn a_stream_ends_on_the_version_it_began_with() {
    let data = tempfile::tempdir().unwrap();
    let process = Killable::start(data.path());
    let server = &process.client;
    let [first, second] = versions();
    #[cfg(target_os = "linux")]
    let before = loaded(&process);
    let (status, one) = server.upload(first).await;
    assert_eq!(status, StatusCode::CREATED, "{one}");
    assert_eq!(
        (&one["name"], &one["version"]),
        (&json!("penance-s"), &json!("0.1.0"))
    );
    #[cfg(target_os = "linux")]
    let code = {
        let code: Vec<_> = loaded(&process).difference(&before).cloned().collect();
        assert_eq!(code.len(), 1);
        code[0].clone()
    };
    let alone = server.complete(&request("penance-s", 2000)).await;
    assert_eq!(alone["usage"]["completion_tokens"], 2000);
    assert_eq!(
        alone["sluice"]["choices"][0]["stages"][1]["digest"],
        one["digest"]
    );

    let mut stream = Events::open(server, &request("penance-s", 2000)).await;
    let mut streamed = stream.take(50).await;
    let (status, two) = server.upload(second).await;
    assert_eq!(status, StatusCode::CREATED, "{two}");
    assert_eq!(
        (&two["name"], &two["version"]),
        (&json!("penance-s"), &json!("0.1.1"))
    );
    streamed += &stream.take(50).await;
    let (status, removed) = server.delete("penance-s@0.1.0").await;
    assert_eq!(status, StatusCode::OK, "{removed}");
    assert_eq!(removed["data"][0]["digest"], one["digest"]);

    // New requests have the new version, by whatever name.
    let digest = |answer: &Value| answer["sluice"]["choices"][0]["stages"][1]["digest"].clone();
    let newest = server.complete(&request("penance-s", 20)).await;
    assert_eq!(digest(&newest), two["digest"]);
    let pinned = server.complete(&request("penance-s@0.1.1", 20)).await;
    assert_eq!(text(&pinned), text(&newest));
    assert!(
        !text(&alone).starts_with(text(&newest)),
        "the versions differ"
    );
    for gone in ["penance-s@0.1.0", one["digest"].as_str().unwrap()] {
        let (status, answer) = server.post("/v1/completions", &request(gone, 5)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{answer}");
        assert_eq!(answer["error"]["code"], "plugin_not_found");
        let (status, answer) = server.get(&format!("/v1/plugins/{gone}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{answer}");
    }
    #[cfg(target_os = "linux")]
    assert!(
        loaded(&process).contains(&code),
        "the stream still runs on it"
    );
    streamed += &stream.take(usize::MAX).await;
    assert_eq!(streamed, text(&alone));
    // Counters are of the name, and do not fall when a version goes: a call for
    // each token above.
    let counted = async {
        let line = "sluice_plugin_calls_total{plugin=\"penance-s\"} 4040\n";
        while !(server.get("/metrics").await.1.as_str()).is_some_and(|all| all.contains(line)) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let counted = tokio::time::timeout(std::time::Duration::from_mins(1), counted).await;
    counted.expect("calls of both versions");
    // What a sequence leaves is dropped beside the decoder, soon.
    #[cfg(target_os = "linux")]
    {
        let gone = async {
            while loaded(&process).contains(&code) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let patience = std::time::Duration::from_mins(1);
        let gone = tokio::time::timeout(patience, gone).await;
        gone.expect("the code of a removed plugin stays loaded");
    }
}

/// What cannot replace a version leaves it in use, and a name that means
/// nothing is never left out of a chain.
#[tokio::test]
async fn a_failed_replacement_leaves_the_old_version_in_use() {
    let server = Server::start(&[]);
    let [first, second] = versions();
    let (status, one) = server.upload(first.clone()).await;
    assert_eq!(status, StatusCode::CREATED, "{one}");
    let before = server.complete(&request("penance-s", 8)).await;
    let broken = [
        (second[..second.len() / 2].to_vec(), StatusCode::BAD_REQUEST),
        (
            replaced(&second, "0.1.1Rep", "0.1.xRep"),
            StatusCode::BAD_REQUEST,
        ),
        // Other bytes under a version that there is.
        (
            replaced(&second, "0.1.1Rep", "0.1.0Rep"),
            StatusCode::CONFLICT,
        ),
    ];
    for (bytes, expected) in broken {
        let (status, answer) = server.upload(bytes).await;
        assert_eq!(status, expected, "{answer}");
        let after = server.complete(&request("penance-s", 8)).await;
        assert_eq!(after["choices"], before["choices"]);
        let stage = &after["sluice"]["choices"][0]["stages"][1];
        assert_eq!(stage["digest"], one["digest"]);
    }
    for reference in [
        "penance-s@0.1.1",
        "penance-s@latest",
        "penance",
        "sha256:00",
    ] {
        let (status, answer) = server.post("/v1/completions", &request(reference, 5)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{reference}: {answer}");
    }
}
