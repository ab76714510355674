//! Uploads and removals, and a kill at any moment: what was acknowledged is
//! there after the next start, whole, and nothing else is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::binary::numbered;
use crate::server::{Killable, Server};
use crate::{guest, own_cache};

/// Test components, each with up to a thousand versions.
const GUESTS: [&str; 3] = ["force", "counter", "boost"];

/// A small generator of our own: the moments are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize
    }

    fn pick<'a, K: Ord, V>(&mut self, map: &'a BTreeMap<K, V>) -> Option<(&'a K, &'a V)> {
        (!map.is_empty()).then(|| map.iter().nth(self.next() % map.len()).unwrap())
    }
}

/// One version of a guest.
#[derive(Clone)]
struct Upload {
    guest: usize,
    version: u32,
}

impl Upload {
    fn bytes(&self, guests: &[Vec<u8>]) -> Vec<u8> {
        numbered(&guests[self.guest], self.version)
    }
}

/// What was acknowledged, by reference.
#[derive(Default)]
struct Ledger {
    there: BTreeMap<String, Upload>,
    /// Removed; the versions stay taken.
    gone: BTreeMap<String, Upload>,
    /// Was under way when the server was killed.
    doubtful: Option<(String, Upload)>,
    n_versions: u32,
}

impl Ledger {
    /// Uploads and removes until it is dropped.
    async fn work(&mut self, server: &Server, guests: &[Vec<u8>], random: &mut Random) {
        loop {
            let choice = random.next() % 8;
            if let (0..3, Some((reference, upload))) = (choice, random.pick(&self.there)) {
                self.doubtful = Some((reference.clone(), upload.clone()));
                let (status, answer) = server.delete(&self.doubtful.as_ref().unwrap().0).await;
                assert_eq!(status, StatusCode::OK, "{answer}");
                let (reference, upload) = self.doubtful.take().unwrap();
                self.there.remove(&reference);
                self.gone.insert(reference, upload);
            } else if let (3, Some((reference, upload))) = (choice, random.pick(&self.gone)) {
                // A version stays taken.
                let other = [&upload.bytes(guests)[..], &[0, 3, 1, b'x', 0]].concat();
                let (status, answer) = server.upload(other).await;
                assert_eq!(status, StatusCode::CONFLICT, "{reference}: {answer}");
            } else {
                let again = random.pick(&self.gone).filter(|_| choice == 4);
                let upload = again.map_or_else(
                    || Upload {
                        guest: random.0 as usize % GUESTS.len(),
                        version: self.n_versions,
                    },
                    |(_, upload)| upload.clone(),
                );
                self.n_versions = self.n_versions.max(upload.version + 1);
                let version = upload.version;
                let reference = format!(
                    "{}@{}.{}.{}",
                    GUESTS[upload.guest],
                    version / 100,
                    version / 10 % 10,
                    version % 10
                );
                let bytes = upload.bytes(guests);
                self.doubtful = Some((reference, upload));
                let (status, answer) = server.upload(bytes).await;
                assert_eq!(status, StatusCode::CREATED, "{answer}");
                let (reference, upload) = self.doubtful.take().unwrap();
                self.gone.remove(&reference);
                self.there.insert(reference, upload);
            }
        }
    }

    /// What a server must have, and must have whole.
    async fn check(&mut self, server: &Server, guests: &[Vec<u8>], data: &Path) {
        let (status, list) = server.get("/v1/plugins").await;
        assert_eq!(status, StatusCode::OK, "{list}");
        let (builtin, uploaded): (Vec<_>, Vec<_>) = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .partition(|plugin| plugin["builtin"] == true);
        assert_eq!(builtin.len(), 7);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let found: BTreeMap<_, _> = uploaded
            .into_iter()
            .map(|plugin| {
                let (name, version) = (text(&plugin["name"]), text(&plugin["version"]));
                (format!("{name}@{version}"), text(&plugin["digest"]))
            })
            .collect();
        if let Some((reference, upload)) = self.doubtful.take() {
            if found.contains_key(&reference) {
                self.gone.remove(&reference);
                self.there.insert(reference, upload);
            } else if self.there.remove(&reference).is_some() {
                self.gone.insert(reference, upload);
            }
        }
        let hex = |bytes: &[u8]| -> String {
            let digest = Sha256::digest(bytes);
            digest.iter().fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").unwrap();
                text
            })
        };
        let expected: BTreeMap<_, _> = self
            .there
            .iter()
            .map(|(reference, upload)| {
                let digest = hex(&upload.bytes(guests));
                (reference.clone(), format!("sha256:{digest}"))
            })
            .collect();
        assert_eq!(found, expected);
        let files: BTreeSet<_> = names(data);
        let usual = ["components", "lock", "plugins.sqlite"].map(str::to_owned);
        let beside = ["plugins.sqlite-wal", "plugins.sqlite-shm"].map(str::to_owned);
        let without_log: BTreeSet<_> = files.difference(&beside.into()).cloned().collect();
        assert_eq!(without_log, usual.into());
        let components = data.join("components");
        let kept: BTreeSet<_> = names(&components)
            .into_iter()
            .map(|name| {
                let digest = hex(&fs::read(components.join(&name)).unwrap());
                assert_eq!(name, format!("{digest}.wasm"), "a component is whole");
                format!("sha256:{digest}")
            })
            .collect();
        assert_eq!(kept, expected.values().cloned().collect());
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    entries.map(|entry| name(entry.unwrap())).collect()
}

/// Nothing half written, no code without a record, no record without code.
fn check_cache(plugins: &Path) {
    let (mut code, mut named) = (BTreeSet::new(), BTreeSet::new());
    for name in names(plugins) {
        let path = plugins.join(&name);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("cwasm") => drop(code.insert(path)),
            Some("json") => {
                let record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
                let digest = record["code"].as_str().unwrap();
                named.insert(plugins.join(format!("{digest}.cwasm")));
            }
            _ => assert!(name == "lock" || name.ends_with(".vocabulary"), "{name}"),
        }
    }
    assert_eq!(code, named);
}

/// The first of the plugins is used.
async fn use_one(server: &Server, reference: &str) {
    let body = json!({
        "prompt": "Once", "max_tokens": 2, "temperature": 0,
        "processors": [{"plugin": reference, "params": {"ids": [28, 29]}}],
    });
    let answer = server.complete(&body).await;
    assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_by_a_kill() {
    let rounds: u64 = std::env::var("SLUICE_TEST_KILLS").map_or(5, |n| n.parse().unwrap());
    let (data, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let arguments = own_cache(cache.path());
    let plugins: PathBuf = cache.path().join("plugins");
    let guests = GUESTS.map(guest);
    let mut ledger = Ledger::default();
    let mut random = Random(1);
    for round in 0..=rounds {
        // A server that is alone with its cache puts it in order.
        let mut server = Killable::start_with(data.path(), |command| {
            command.args(&arguments);
        });
        ledger.check(&server.client, &guests, data.path()).await;
        check_cache(&plugins);
        // Whoever compiled for the server before is gone with it.
        #[cfg(target_os = "linux")]
        {
            let plugins = plugins.to_str().unwrap();
            assert_eq!(crate::process::n_processes_with(plugins), 0);
        }
        let force = ledger.there.keys().find(|name| name.starts_with("force@"));
        if let Some(reference) = force.cloned() {
            use_one(&server.client, &reference).await;
        }
        // Most kills soon, while the work of a start is still to be written.
        let share = (random.next() % 1000) as u64;
        let moment = Duration::from_millis(1 + share * share * 1500 / 1_000_000);
        let work = ledger.work(&server.client, &guests, &mut random);
        // The future is dropped where it waits, with `doubtful` set.
        let _ = tokio::time::timeout(moment, work).await;
        server.kill();
        println!(
            "round {round}: {} there, {} gone, doubtful: {}",
            ledger.there.len(),
            ledger.gone.len(),
            ledger.doubtful.is_some()
        );
    }
    assert!(ledger.n_versions > 0);
}
