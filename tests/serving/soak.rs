//! Many uploads and many short requests: what each of them took comes back.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use futures_util::future::join_all;
use serde_json::json;

use crate::binary::numbered;
use crate::process::Process;
use crate::server::{Killable, Server};
use crate::{guest, own_cache};

/// Plugins of two kinds, with parameters.
const GUESTS: [&str; 3] = ["force", "counter", "boost"];
/// Room for as many requests as are under way: one that kept its place would
/// be missed soon.
const INSTANCES: usize = 12;
const AT_ONCE: usize = INSTANCES / 3;
const REQUESTS_FOR_EACH: usize = 12;

struct Soak<'a> {
    server: &'a Server,
    guests: &'a [Vec<u8>; 3],
}

impl Soak<'_> {
    /// Uploads the `i`-th version and returns how to name it.
    async fn upload(&self, i: u32) -> String {
        let bytes = numbered(&self.guests[i as usize % 3], i);
        let (status, plugin) = self.server.upload(bytes).await;
        assert!(status.is_success(), "{i}: {plugin}");
        format!(
            "{}@{}",
            plugin["name"].as_str().unwrap(),
            plugin["version"].as_str().unwrap()
        )
    }

    /// A chain of three stages, one of them this plugin.
    async fn request(&self, plugin: &str, k: usize) {
        let params = match plugin.split_once('@').unwrap().0 {
            "force" => json!({"ids": [40 + k]}),
            "counter" => json!({}),
            _ => json!({"id": 40 + k, "value": 50}),
        };
        let body = json!({
            "prompt": [300 + k, 301, 302], "max_tokens": 1 + k % 2, "ignore_eos": null,
            "chain": [
                {"plugin": "penalties", "params": {"presence_penalty": 1}},
                {"plugin": plugin, "params": params},
                {"plugin": "sampler", "params": {"temperature": 0}},
            ],
        });
        let answer = self.server.complete(&body).await;
        let stages = answer["sluice"]["choices"][0]["stages"].as_array();
        assert_eq!(stages.unwrap().len(), 3, "{answer}");
    }

    /// Uploads versions, uses each while the next one is compiled, and removes
    /// it.
    async fn pass(&self, versions: std::ops::Range<u32>) {
        let mut plugin = self.upload(versions.start).await;
        for i in versions.clone() {
            let next = async {
                match i + 1 {
                    next if next < versions.end => self.upload(next).await,
                    _ => String::new(),
                }
            };
            let requests = async {
                for chunk in 0..REQUESTS_FOR_EACH / AT_ONCE {
                    let of_chunk = chunk * AT_ONCE..(chunk + 1) * AT_ONCE;
                    join_all(of_chunk.map(|k| self.request(&plugin, k))).await;
                }
            };
            let (next, ()) = tokio::join!(next, requests);
            let (status, answer) = self.server.delete(&plugin).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
            plugin = next;
        }
    }
}

/// What a process has when nothing is going on.
#[derive(Debug)]
#[allow(dead_code, reason = "shown")]
struct Footprint {
    resident_mib: u64,
    threads: u64,
    files: usize,
}

/// Waits for the threads that came with the work to end, which they do when
/// they have been idle for ten seconds.
async fn at_rest(process: &Process) -> Footprint {
    let (mut threads, mut since) = (process.n_threads(), Instant::now());
    while since.elapsed() < Duration::from_secs(12) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = process.n_threads();
        if now != threads {
            (threads, since) = (now, Instant::now());
        }
    }
    Footprint {
        resident_mib: process.resident_bytes() >> 20,
        threads: process.n_threads(),
        files: process.n_files(),
    }
}

fn n_bytes(folder: &Path) -> (usize, u64) {
    let files: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect();
    let bytes = files.iter().map(|file| file.metadata().unwrap().len());
    (files.len(), bytes.sum())
}

#[tokio::test]
async fn uploads_and_requests_leave_nothing_behind() {
    let n: u32 = std::env::var("SLUICE_TEST_UPLOADS").map_or(20, |n| n.parse().unwrap());
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let arguments = own_cache(cache.path());
    let start = || {
        Killable::start_with(data.path(), |command| {
            command.args(&arguments);
            command.args(["--max-instances", &INSTANCES.to_string()]);
            // The machine may be busy with other things.
            command.args(["--plugin-call-ms", "2000"]);
        })
    };
    let server = start();
    let process = Process(server.id());
    let guests = &GUESTS.map(guest);
    let soak = Soak {
        server: &server.client,
        guests,
    };
    let warm_up = (n / 5).max(3);
    let begin = Instant::now();
    soak.pass(0..warm_up).await;
    let warm = at_rest(&process).await;
    println!("after {warm_up} uploads: {warm:?}");
    soak.pass(warm_up..n).await;
    let end = at_rest(&process).await;
    let components = data.path().join("components");
    println!(
        "after {n} uploads, {} requests, {:.0?}: {end:?}, {:?} components and bytes",
        n as usize * REQUESTS_FOR_EACH,
        begin.elapsed(),
        n_bytes(&components)
    );
    assert!(
        end.resident_mib <= warm.resident_mib + 32,
        "{warm:?} {end:?}"
    );
    assert!(end.threads <= warm.threads, "{warm:?} {end:?}");
    assert!(end.files <= warm.files, "{warm:?} {end:?}");
    assert_eq!(n_bytes(&components), (0, 0));

    // The same ones again, and all kept.
    let begin = Instant::now();
    let mut kept = Vec::new();
    for i in 0..n {
        kept.push(soak.upload(i).await);
    }
    let full = at_rest(&process).await;
    println!(
        "{n} plugins registered again in {:.1?}: {full:?}",
        begin.elapsed()
    );
    let expected: u64 = (0..n as usize).map(|i| guests[i % 3].len() as u64).sum();
    assert_eq!(n_bytes(&components), (n as usize, expected));
    soak.request(kept.last().unwrap(), 0).await;
    drop(server);
    let begin = Instant::now();
    let server = start();
    println!("started with {n} plugins in {:.1?}", begin.elapsed());
    let soak = Soak {
        server: &server.client,
        guests,
    };
    let (_, list) = server.client.get("/v1/plugins").await;
    assert_eq!(list["data"].as_array().unwrap().len(), n as usize + 7);
    soak.request(&kept[0], 1).await;
    for plugin in &kept {
        assert_eq!(server.client.delete(plugin).await.0, StatusCode::OK);
    }
    let process = Process(server.id());
    let empty = at_rest(&process).await;
    println!("all removed: {empty:?}");
    assert!(empty.files <= warm.files, "{warm:?} {empty:?}");
    assert_eq!(n_bytes(&components), (0, 0));
    let (_, metrics) = server.client.get("/metrics").await;
    let metrics = metrics.as_str().map_or_else(String::new, str::to_owned);
    for idle in [
        "sluice_sequences_running 0\n",
        "sluice_sequences_waiting 0\n",
    ] {
        assert!(metrics.contains(idle), "{idle}{metrics}");
    }
}
