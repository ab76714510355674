//! The hub against a stand-in: a server that answers as the hub does, redirects
//! large files as it does, and breaks off when told to.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::{TempDir, tempdir};

use super::*;

const FIRST: &str = "1111111111111111111111111111111111111111";
const SECOND: &str = "2222222222222222222222222222222222222222";

/// What the stand-in has, what it is to do, and what it was asked.
#[derive(Default)]
struct State {
    /// The commit that `main` is.
    main: String,
    /// The files of each commit.
    commits: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Most bytes of an answer with a large file; then the connection ends.
    cut: Option<usize>,
    /// How many answers with large files there still are; then none is whole.
    n_answers: Option<usize>,
    /// Large files come with a changed byte.
    is_corrupt: bool,
    /// Everything is answered with this page.
    page: Option<&'static str>,
    stopped: bool,
    /// Path, range and authorization of each request.
    requests: Vec<[String; 3]>,
}

struct StandIn {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    folder: TempDir,
}

impl StandIn {
    fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            main: FIRST.to_owned(),
            commits: [(FIRST.to_owned(), files)].into(),
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.lock().unwrap().stopped {
                    break;
                }
                // A client may leave at any time.
                let _ = answer(&stream.unwrap(), &shared, address);
            }
        });
        let folder = tempdir().unwrap();
        Self {
            address,
            state,
            folder,
        }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Paths and ranges since the last time.
    fn requests(&self) -> Vec<[String; 3]> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    fn hub(&self) -> Hub {
        Hub {
            endpoint: format!("http://{}", self.address),
            folder: self.folder.path().to_owned(),
            token: Some("secret".to_owned()),
        }
    }

    fn fetch(&self, model: &str) -> Result<PathBuf, String> {
        fetch(&self.hub(), model, false)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.set(|state| state.stopped = true);
        let _ = TcpStream::connect(self.address);
    }
}

fn fetch(hub: &Hub, model: &str, offline: bool) -> Result<PathBuf, String> {
    hub.fetch(&model.parse().unwrap(), offline, &mut |_| ())
        .map_err(|error| error.to_string())
}

fn sha256(content: &[u8]) -> String {
    let hex = |mut text: String, byte: u8| {
        write!(text, "{byte:02x}").unwrap();
        text
    };
    Sha256::digest(content).into_iter().fold(String::new(), hex)
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name::is_gguf(name)
}

fn answer(
    mut stream: &TcpStream,
    state: &Mutex<State>,
    address: SocketAddr,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let line = lines.next().unwrap_or(Ok(String::new()))?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut range, mut authorization) = (String::new(), String::new());
    for line in lines {
        let line = line?;
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => range = value.to_owned(),
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                authorization = value.to_owned();
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut state = state.lock().unwrap();
    state
        .requests
        .push([path.clone(), range.clone(), authorization]);
    let mut send = |status: &str, headers: &str, length: usize, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)
    };
    if let Some(page) = state.page {
        return send("200 OK", "", page.len(), page.as_bytes());
    }
    if let Some(rest) = path.strip_prefix("/api/models/acme/tiny/revision/") {
        let revision = rest.split('?').next().unwrap_or_default();
        let commit = match revision {
            "main" => state.main.clone(),
            other => other.to_owned(),
        };
        if let Some(files) = state.commits.get(&commit) {
            let body = listing(&commit, files).to_string();
            return send("200 OK", "", body.len(), body.as_bytes());
        }
    }
    let found = path.strip_prefix("/acme/tiny/resolve/").and_then(|rest| {
        let (commit, name) = rest.split_once('/')?;
        let content = state.commits.get(commit)?.get(name)?;
        Some((commit.to_owned(), name.to_owned(), content.clone()))
    });
    if let Some((commit, name, content)) = found {
        let commit = format!("X-Repo-Commit: {commit}\r\n");
        let digest = sha256(&content);
        if is_large(&name) {
            let headers = format!(
                "{commit}X-Linked-Etag: \"{digest}\"\r\nLocation: http://{address}/large/{digest}\r\n"
            );
            return send("302 Found", &headers, 0, &[]);
        }
        let headers = format!("{commit}ETag: \"{}\"\r\n", &digest[..40]);
        return part(&range, &content, &headers, usize::MAX, send);
    }
    let large = path.strip_prefix("/large/").and_then(|digest| {
        let mut contents = state.commits.values().flat_map(BTreeMap::values);
        contents.find(|content| sha256(content) == digest).cloned()
    });
    if let Some(mut content) = large {
        if state.is_corrupt {
            content[0] ^= 1;
        }
        let mut most = state.cut.unwrap_or(usize::MAX);
        if range != "bytes=0-0"
            && let Some(n_answers) = &mut state.n_answers
        {
            if *n_answers == 0 {
                most = 0;
            } else {
                *n_answers -= 1;
            }
        }
        return part(&range, &content, "", most, send);
    }
    send("404 Not Found", "", 0, &[])
}

/// Sends the range of a content, or as much of it as `most` allows.
fn part(
    range: &str,
    content: &[u8],
    headers: &str,
    most: usize,
    mut send: impl FnMut(&str, &str, usize, &[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let (first, last) = range
        .strip_prefix("bytes=")
        .and_then(|range| range.split_once('-'))
        .unwrap_or(("0", ""));
    let first: usize = first.parse().unwrap();
    let end = last
        .parse()
        .map_or(content.len(), |last: usize| last + 1)
        .min(content.len());
    if first >= end {
        return send("416 Range Not Satisfiable", headers, 0, &[]);
    }
    let headers = format!(
        "{headers}Content-Range: bytes {first}-{}/{}\r\n",
        end - 1,
        content.len()
    );
    let body = &content[first..end];
    send(
        "206 Partial Content",
        &headers,
        body.len(),
        &body[..body.len().min(most)],
    )
}

fn listing(commit: &str, files: &BTreeMap<String, Vec<u8>>) -> Value {
    let siblings: Vec<Value> = files
        .iter()
        .map(|(name, content)| {
            let mut listed = json!({"rfilename": name, "size": content.len()});
            if is_large(name) {
                listed["lfs"] = json!({"sha256": sha256(content), "size": content.len()});
            }
            listed
        })
        .collect();
    json!({"id": "acme/tiny", "sha": commit, "siblings": siblings})
}

fn files(contents: &[(&str, &[u8])]) -> BTreeMap<String, Vec<u8>> {
    let named = contents.iter().copied();
    named
        .map(|(name, content)| (name.to_owned(), content.to_vec()))
        .collect()
}

/// A folder of two shards, and files that nobody needs.
fn sharded() -> BTreeMap<String, Vec<u8>> {
    let index = br#"{"weight_map": {"x": "a-1.safetensors", "y": "a-2.safetensors"}}"#;
    files(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"t\": 1}"),
        ("README.md", b"read me"),
        ("model.safetensors.index.json", index),
        ("a-1.safetensors", &[1; 3000]),
        ("a-2.safetensors", &[2; 500]),
        ("consolidated.safetensors", &[3; 9000]),
        ("../escape.json", b"{}"),
    ])
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_folder_is_fetched_of_one_commit_and_kept() {
    let server = StandIn::new(sharded());
    let mut reports: Vec<Progress> = Vec::new();
    let model: HubModel = "acme/tiny".parse().unwrap();
    let path = server
        .hub()
        .fetch(&model, false, &mut |progress| reports.push(progress))
        .unwrap();
    assert!(path.ends_with(format!("snapshots/{FIRST}")));
    assert_eq!(
        names(&path),
        [
            "a-1.safetensors",
            "a-2.safetensors",
            "config.json",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
    assert_eq!(fs::read(path.join("a-2.safetensors")).unwrap(), [2; 500]);
    let last = reports.last().unwrap();
    assert_eq!(last.done_bytes, last.total_bytes);
    assert!(last.total_bytes > 3500);
    let requests = server.requests();
    assert!(requests.iter().all(|[path, _, authorization]| {
        authorization == "Bearer secret" && (path.contains(FIRST) || !path.contains("resolve"))
    }));

    // Asked again, it is only asked what `main` is.
    assert_eq!(server.fetch("acme/tiny").unwrap(), path);
    assert_eq!(server.requests().len(), 1);
    // A commit that is there is what it was.
    let pinned = format!("acme/tiny@{FIRST}");
    assert_eq!(server.fetch(&pinned).unwrap(), path);
    assert!(server.requests().is_empty());

    let mut changed = sharded();
    changed.insert("a-2.safetensors".to_owned(), vec![9; 700]);
    server.set(|state| {
        state.main = SECOND.to_owned();
        state.commits.insert(SECOND.to_owned(), changed);
    });
    // Offline `main` is what it was last.
    assert_eq!(fetch(&server.hub(), "acme/tiny", true).unwrap(), path);
    let newer = server.fetch("acme/tiny").unwrap();
    assert!(newer.ends_with(SECOND));
    assert_eq!(fs::read(newer.join("a-2.safetensors")).unwrap(), [9; 700]);
    assert_eq!(server.fetch(&pinned).unwrap(), path);
    assert_eq!(fs::read(path.join("a-2.safetensors")).unwrap(), [2; 500]);
    assert_eq!(fetch(&server.hub(), "acme/tiny", true).unwrap(), newer);
}

#[test]
fn an_interrupted_file_is_resumed() {
    let server = StandIn::new(sharded());
    // Whenever the connection ends, the rest is asked for.
    server.set(|state| state.cut = Some(1200));
    let path = server.fetch("acme/tiny").unwrap();
    assert_eq!(fs::read(path.join("a-1.safetensors")).unwrap(), [1; 3000]);
    let ranges = |server: &StandIn| -> Vec<String> {
        let requests = server.requests().into_iter();
        let large = requests.filter(|[path, ..]| path.starts_with("/large"));
        large
            .map(|[_, range, _]| range)
            .filter(|range| range != "bytes=0-0")
            .collect()
    };
    assert_eq!(
        ranges(&server),
        ["bytes=0-", "bytes=1200-", "bytes=2400-", "bytes=0-"]
    );

    // Also by another process, after this one gave up.
    let server = StandIn::new(sharded());
    server.set(|state| {
        state.cut = Some(1200);
        state.n_answers = Some(1);
    });
    let error = server.fetch("acme/tiny").unwrap_err();
    assert!(error.contains("a-1.safetensors"), "{error}");
    assert!(fetch(&server.hub(), "acme/tiny", true).is_err());
    server.requests();
    server.set(|state| {
        state.cut = None;
        state.n_answers = None;
    });
    let path = server.fetch("acme/tiny").unwrap();
    assert_eq!(ranges(&server), ["bytes=1200-", "bytes=0-"]);
    assert_eq!(fs::read(path.join("a-1.safetensors")).unwrap(), [1; 3000]);
}

#[test]
fn a_file_of_another_content_is_not_kept() {
    let server = StandIn::new(sharded());
    server.set(|state| state.is_corrupt = true);
    let error = server.fetch("acme/tiny").unwrap_err();
    assert!(
        error.contains("a-1.safetensors: its SHA-256 is") && error.contains("hf:acme/tiny@main"),
        "{error}"
    );
    server.set(|state| state.is_corrupt = false);
    let path = server.fetch("acme/tiny").unwrap();
    assert_eq!(fs::read(path.join("a-1.safetensors")).unwrap(), [1; 3000]);
    // A part that lacks nothing but its name.
    let whole = path.join("a-1.safetensors");
    let blob = fs::canonicalize(&whole).unwrap();
    fs::remove_file(&whole).unwrap();
    fs::rename(&blob, blob.with_extension("part")).unwrap();
    server.fetch("acme/tiny").unwrap();
    assert_eq!(fs::read(whole).unwrap(), [1; 3000]);
}

#[test]
fn one_file_of_several_must_be_named() {
    let server = StandIn::new(files(&[
        ("q4.gguf", &[4; 100]),
        ("q8.gguf", &[8; 100]),
        ("config.json", b"{}"),
    ]));
    let error = server.fetch("acme/tiny").unwrap_err();
    assert!(error.contains("q4.gguf, q8.gguf"), "{error}");
    let error = server.fetch("acme/tiny/q5.gguf").unwrap_err();
    assert!(error.contains("q4.gguf, q8.gguf"), "{error}");
    let path = server.fetch("acme/tiny/q8.gguf@main").unwrap();
    assert_eq!(fs::read(&path).unwrap(), [8; 100]);
    assert_eq!(
        fetch(&server.hub(), "acme/tiny/q8.gguf", true).unwrap(),
        path
    );
    assert!(fetch(&server.hub(), "acme/tiny/q4.gguf", true).is_err());

    let server = StandIn::new(files(&[("only.gguf", &[1; 10])]));
    assert!(server.fetch("acme/tiny").unwrap().ends_with("only.gguf"));
    let server = StandIn::new(files(&[("pytorch_model.bin", &[1; 10])]));
    assert!(server.fetch("acme/tiny").unwrap_err().contains("neither"));
}

#[test]
fn what_cannot_be_fetched_is_one_sentence() {
    let server = StandIn::new(sharded());
    let error = fetch(&server.hub(), "acme/tiny", true).unwrap_err();
    assert!(error.contains("offline"), "{error}");
    let error = server.fetch("acme/other").unwrap_err();
    assert!(
        error.contains("404") && error.contains("no such repository"),
        "{error}"
    );
    let error = server.fetch("acme/tiny@v9").unwrap_err();
    assert!(error.contains("hf:acme/tiny@v9"), "{error}");
    server.set(|state| state.page = Some("<html>Log in to this network</html>"));
    let error = server.fetch("acme/tiny").unwrap_err();
    assert!(error.contains("lists no files"), "{error}");
    server.set(|state| {
        state.page = Some(r#"{"sha": "../../etc", "siblings": []}"#);
    });
    let error = server.fetch("acme/tiny").unwrap_err();
    assert!(error.contains("names no commit"), "{error}");

    let mut nowhere = server.hub();
    nowhere.endpoint = "http://127.0.0.1:1".to_owned();
    let error = fetch(&nowhere, "acme/tiny", false).unwrap_err();
    assert!(
        error.contains("127.0.0.1:1") && error.contains("--offline"),
        "{error}"
    );
    nowhere.endpoint = "hub".to_owned();
    let error = fetch(&nowhere, "acme/tiny", false).unwrap_err();
    assert!(error.contains("`hub` is no URL"), "{error}");
}
