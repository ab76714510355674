//! A server in a process of its own, told to stop or with an engine that is
//! lost: what its clients and its parent are told. The model waits for a file,
//! so nothing here depends on how fast the machine is.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use http_body_util::BodyExt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sluice::engine::{EngineConfig, TokenId};
use sluice::http::{AccessLog, RequestLimits, Web};
use sluice::serve::{Endings, run};

use super::server::{Answer, Http, Setup, service};

const PATIENCE: Duration = Duration::from_mins(2);
const COMPLETIONS: &str = "/v1/completions";
/// The file that the model waits for.
const GATE: &str = "SLUICE_TEST_GATE";
const DRAIN_MS: &str = "SLUICE_TEST_DRAIN_MS";
/// How a step that waits for the gate ends: `lost` is a panic.
const FATE: &str = "SLUICE_TEST_FATE";

/// Says `a` three times, then waits for the gate.
fn gated(context: &[TokenId]) -> Vec<f32> {
    if context.len() > 3 {
        assert_ne!(
            env::var(FATE).as_deref(),
            Ok("lost"),
            "as the test wants it"
        );
        let gate = PathBuf::from(env::var_os(GATE).unwrap());
        while !gate.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    vec![0.0, 0.0, 4.0]
}

/// The process that the other tests start.
#[test]
#[ignore = "a server for the other tests"]
fn server() {
    let Ok(drain) = env::var(DRAIN_MS) else {
        return;
    };
    let stuck = env::var(FATE).as_deref() == Ok("stuck");
    let (service, engine) = service(&Setup {
        engine: EngineConfig {
            draft_rows: 0,
            ..EngineConfig::default()
        },
        script: gated,
        requests: RequestLimits {
            step: if stuck {
                Duration::from_millis(500)
            } else {
                Duration::from_hours(1)
            },
            uploads_per_minute: 0,
            ..RequestLimits::default()
        },
        web: Web {
            log: AccessLog::Json,
            ..Web::default()
        },
        ..Setup::default()
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endings = Endings {
        drain: Duration::from_millis(drain.parse().unwrap()),
        ..Endings::default()
    };
    let exit = run(listener, Arc::new(service), engine, endings);
    exit.unwrap().leave();
}

struct Process {
    child: Child,
    http: Http,
    folder: tempfile::TempDir,
    /// What it writes to its standard output.
    lines: Receiver<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(drain: Duration, fate: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "stopping::server", "--ignored", "--nocapture"])
            .env(GATE, folder.path().join("gate"))
            .env(DRAIN_MS, drain.as_millis().to_string())
            .env(FATE, fate)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| {
                line.split_once("listening on ")
                    .map(|(_, url)| url.to_owned())
            })
            .expect("it says where it listens");
        let (sender, received) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self {
            child,
            http: Http { url },
            folder,
            lines: received,
        }
    }

    fn open_gate(&self) {
        std::fs::write(self.folder.path().join("gate"), "").unwrap();
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).unwrap();
    }

    /// Waits for the process to end by itself.
    async fn exit(&mut self) -> ExitStatus {
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.unwrap()
    }

    /// A stream that has come as far as it does before the gate opens.
    async fn stream(&self) -> Stream {
        let body = json!({
            "prompt": "b", "max_tokens": 5, "temperature": 0, "stream": true,
        });
        let response = self
            .http
            .open(Method::POST, COMPLETIONS, Body::from(body.to_string()))
            .await;
        assert_eq!(response.status(), StatusCode::OK);
        let mut stream = Stream {
            body: response.into_body(),
            text: String::new(),
        };
        while stream.text.matches("data: ").count() < 3 {
            assert!(stream.read().await.unwrap(), "{}", stream.text);
        }
        stream
    }

    async fn plain(&self) -> Answer {
        let body = json!({"prompt": "b", "max_tokens": 5, "temperature": 0});
        self.http.post(COMPLETIONS, &body).await
    }

    /// Waits until requests are taken no more.
    async fn draining(&self) -> Answer {
        let refused = async {
            loop {
                let ready = self.http.get("/ready").await;
                if ready.status != StatusCode::OK {
                    return ready;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, refused).await.unwrap()
    }

    /// Waits until a sequence waits: the engine is at a step of another.
    async fn waiting(&self) {
        let waiting = async {
            while self.http.get("/health").await.json()["waiting"] != 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    }
}

struct Stream {
    body: Body,
    text: String,
}

impl Stream {
    /// Reads a piece; false at the end, an error where it is cut.
    async fn read(&mut self) -> Result<bool, axum::Error> {
        let Some(frame) = self.body.frame().await else {
            return Ok(false);
        };
        if let Ok(bytes) = frame?.into_data() {
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
        Ok(true)
    }

    /// The data of the last event, once the stream has ended as it should.
    async fn last(mut self) -> String {
        while self.read().await.unwrap() {}
        let last = self.text.trim_end().rsplit("data: ").next().unwrap();
        last.to_owned()
    }
}

fn code(event: &str) -> Value {
    let mut event: Value = serde_json::from_str(event).unwrap();
    event["error"]["code"].take()
}

#[tokio::test]
async fn requests_under_way_end_and_no_others_are_taken() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut process = Process::start(PATIENCE, "");
        let stream = process.stream().await;
        process.signal(signal);
        let ready = process.draining().await;
        assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
        for answer in [
            ready,
            process.plain().await,
            process.http.get("/v1/models").await,
        ] {
            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(answer.json()["error"]["code"], "stopped");
            let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=PATIENCE.as_secs()).contains(&seconds), "{seconds}");
        }
        assert_eq!(process.http.get("/health").await.status, StatusCode::OK);
        process.open_gate();
        assert_eq!(stream.last().await, "[DONE]");
        assert_eq!(process.exit().await.code(), Some(0));
    }
}

#[tokio::test]
async fn what_takes_too_long_is_ended_with_an_error() {
    let mut process = Process::start(Duration::from_millis(300), "");
    let stream = process.stream().await;
    let plain = process.plain();
    let stop = async {
        process.waiting().await;
        process.signal(Signal::TERM);
        // Not before the drain is over, and the engine is let go then.
        let last = stream.last().await;
        process.open_gate();
        last
    };
    let (plain, last) = tokio::join!(plain, stop);
    assert_eq!(code(&last), "stopped", "{last}");
    assert!(last.contains("300ms"), "{last}");
    assert_eq!(plain.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(plain.json()["error"]["code"], "stopped");
    assert!(plain.header("retry-after").is_some());
    assert_eq!(process.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut process = Process::start(Duration::from_hours(1), "");
        let mut stream = process.stream().await;
        process.signal(Signal::TERM);
        process.draining().await;
        process.signal(signal);
        assert_eq!(process.exit().await.code(), Some(expected));
        let cut = async {
            while stream.read().await? {}
            Ok::<_, axum::Error>(())
        };
        assert!(cut.await.is_err());
    }
}

#[tokio::test]
async fn a_server_without_requests_stops_at_once() {
    let mut process = Process::start(Duration::from_hours(1), "");
    // A connection that is kept open holds up nothing.
    assert_eq!(process.http.get("/ready").await.status, StatusCode::OK);
    process.signal(Signal::TERM);
    assert_eq!(process.exit().await.code(), Some(0));
}

#[tokio::test]
async fn an_engine_that_is_stuck_or_lost_takes_the_process_along() {
    for (fate, expected) in [("stuck", "engine_error"), ("lost", "cancelled")] {
        let mut process = Process::start(PATIENCE, fate);
        let stream = process.stream().await;
        let last = stream.last().await;
        assert_eq!(code(&last), expected, "{last}");
        assert_eq!(process.exit().await.code(), Some(70), "{fate}");
    }
}

#[tokio::test]
async fn each_request_is_written_down_when_its_answer_is_sent() {
    let process = Process::start(PATIENCE, "");
    let models = process.http.get("/v1/models/none").await;
    let line: Value = serde_json::from_str(&process.lines.recv_timeout(PATIENCE).unwrap()).unwrap();
    assert_eq!(line["request_id"], models.header("x-request-id").unwrap());
    assert_eq!(
        (&line["method"], &line["status"]),
        (&json!("GET"), &json!(404))
    );
    assert_eq!(
        (&line["path"], &line["caller"]),
        (&json!("/v1/models/none"), &Value::Null)
    );
    // A stream is written down at its end.
    let stream = process.stream().await;
    assert_eq!(process.http.get("/ready").await.status, StatusCode::OK);
    process.open_gate();
    assert_eq!(stream.last().await, "[DONE]");
    for path in ["/ready", COMPLETIONS] {
        let line = process.lines.recv_timeout(PATIENCE).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&line["path"], &line["status"]),
            (&json!(path), &json!(200))
        );
    }
}
