//! The real program on the default model, and a client.
#![allow(dead_code, clippy::unwrap_used)]

use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

/// A running `sluice serve`.
pub struct Server {
    pub url: String,
    // Its standard input keeps the server alive; see `start`.
    _shell: Child,
}

impl Server {
    /// The one server of a test binary.
    pub fn shared() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| Self::start(&[]))
    }

    /// Starts a server on a free port. A shell stands between, which ends it
    /// when this process is gone, however that happens.
    pub fn start(arguments: &[&str]) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", r#""$@" & server=$!; cat >/dev/null; kill $server"#, "sh"])
            .arg(env!("CARGO_BIN_EXE_sluice"))
            .args(["serve", "--port", "0"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let url = lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("listening on ").map(str::to_owned))
            .expect("the server says where it listens");
        std::thread::spawn(move || lines.for_each(drop));
        Self { url, _shell: shell }
    }

    pub async fn send(&self, path: &str, body: &Value) -> Response {
        Client::new()
            .post(format!("{}{path}", self.url))
            .json(body)
            .send()
            .await
            .unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.send(path, body).await).await
    }

    /// The answer to a request that must succeed.
    pub async fn complete(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/v1/completions", body).await;
        assert_eq!(status, StatusCode::OK, "{body}\n{answer}");
        answer
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        let response = Client::new().get(format!("{}{path}", self.url)).send().await;
        answer(response.unwrap()).await
    }

    pub async fn upload(&self, component: Vec<u8>) -> (StatusCode, Value) {
        let request = Client::new().put(format!("{}/v1/plugins", self.url));
        answer(request.body(component).send().await.unwrap()).await
    }

    pub async fn delete(&self, reference: &str) -> (StatusCode, Value) {
        let url = format!("{}/v1/plugins/{reference}", self.url);
        answer(Client::new().delete(url).send().await.unwrap()).await
    }
}

async fn answer(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, value)
}

/// The data of each event of a stream, `[DONE]` included.
pub async fn events(response: Response) -> Vec<String> {
    assert_eq!(response.status(), StatusCode::OK);
    let text = response.text().await.unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(str::to_owned)
        .collect()
}

pub fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}
