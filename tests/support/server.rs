//! The real program on the default model, and a client.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Method, Request, Response, StatusCode},
};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::OnceLock,
};

/// A running `sluice serve`.
pub struct Server {
    pub url: String,
    // The shell's standard input keeps the server alive; see `start_in`.
    kept: Option<(Child, Option<tempfile::TempDir>)>,
}

impl Server {
    /// The one server of a test binary.
    pub fn shared() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| Self::start(&[]))
    }

    /// Starts a server on a free port, with a plugin store of its own.
    pub fn start(arguments: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut server = Self::start_in(data.path(), arguments);
        if let Some((_, folder)) = &mut server.kept {
            *folder = Some(data);
        }
        server
    }

    /// Starts a server with the plugin store in `data`. A shell stands between,
    /// which ends it when this process is gone, however that happens; it keeps
    /// no end of the output, so that a server that does not start is noticed.
    pub fn start_in(data: &Path, arguments: &[&str]) -> Self {
        let mut shell = Command::new("sh")
            .args([
                "-c",
                r#""$@" & server=$!; exec >&-; cat >/dev/null; kill $server"#,
                "sh",
            ])
            .arg(env!("CARGO_BIN_EXE_sluice"))
            .args(["serve", "--port", "0", "--data"])
            .arg(data)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let url = Self::listening(shell.stdout.take().unwrap());
        Self {
            url,
            kept: Some((shell, None)),
        }
    }

    /// Waits until a server says where it listens.
    fn listening(stdout: ChildStdout) -> String {
        let mut lines = BufReader::new(stdout).lines();
        let url = lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("listening on ").map(str::to_owned))
            .expect("the server says where it listens");
        std::thread::spawn(move || lines.for_each(drop));
        url
    }

    async fn request(&self, method: Method, path: &str, body: Vec<u8>) -> (StatusCode, String) {
        let response = self.respond(method, path, body).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.into()).unwrap())
    }

    /// Sends a request and returns when the answer's head is there.
    pub async fn respond(&self, method: Method, path: &str, body: Vec<u8>) -> Response<Body> {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .body(Full::from(body))
            .unwrap();
        client.request(request).await.unwrap().map(Body::new)
    }

    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        json(
            self.request(Method::POST, path, body.to_string().into())
                .await,
        )
    }

    /// The same with the answer's headers.
    pub async fn post_for_headers(
        &self,
        path: &str,
        body: &Value,
    ) -> (StatusCode, HeaderMap, Value) {
        let response = self
            .respond(Method::POST, path, body.to_string().into())
            .await;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, headers, serde_json::from_slice(&body).unwrap())
    }

    /// The data of each event of a stream, `[DONE]` included.
    pub async fn stream(&self, path: &str, body: &Value) -> Vec<String> {
        let (status, text) = self
            .request(Method::POST, path, body.to_string().into())
            .await;
        assert_eq!(status, StatusCode::OK, "{text}");
        text.lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(str::to_owned)
            .collect()
    }

    /// The answer to a request that must succeed.
    pub async fn complete(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/v1/completions", body).await;
        assert_eq!(status, StatusCode::OK, "{body}\n{answer}");
        answer
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        json(self.request(Method::GET, path, vec![]).await)
    }

    pub async fn upload(&self, component: Vec<u8>) -> (StatusCode, Value) {
        json(self.request(Method::PUT, "/v1/plugins", component).await)
    }

    pub async fn delete(&self, reference: &str) -> (StatusCode, Value) {
        let path = format!("/v1/plugins/{reference}");
        json(self.request(Method::DELETE, &path, vec![]).await)
    }
}

fn json((status, text): (StatusCode, String)) -> (StatusCode, Value) {
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, value)
}

pub fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

/// A server that can be killed.
pub struct Killable {
    child: Child,
    pub client: Server,
}

impl Killable {
    /// Starts a server with the plugin store in `data`.
    pub fn start(data: &Path) -> Self {
        Self::start_with(data, |_| ())
    }

    /// The same, with whatever else `set` sets.
    pub fn start_with(data: &Path, set: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command
            .args(["serve", "--port", "0", "--data"])
            .arg(data)
            .stdout(Stdio::piped());
        set(&mut command);
        let mut child = command.spawn().unwrap();
        let url = Server::listening(child.stdout.take().unwrap());
        Self {
            child,
            client: Server { url, kept: None },
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended by itself.
    pub fn exit(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        // An error says that it has ended before.
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        self.kill();
    }
}
