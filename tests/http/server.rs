//! A server whose model does what the prompt says, and a client.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use sluice::engine::fake::ScriptedModel;
use sluice::engine::{self, EngineConfig, Model, ModelInfo, TokenId};
use sluice::http::{
    Access, Concurrency, Connections, HEAD_TIMEOUT, Lifecycle, RequestLimits, ServedModel, Service,
    UploadRate, Web, router,
};
use sluice::plugin::{Compiler, Limits, Registry, Runtime, STACK_BYTES};
use sluice::telemetry::Metrics;
use sluice::text::{ChatTemplate, Tokenizer};

pub const EOS: TokenId = 1;
pub const NEWLINE: TokenId = 6;

/// The vocabulary: 8 and 9 are the halves of 😀, 10 and 11 of あ.
pub const PIECES: [&[u8]; 12] = [
    b"<bos>",
    b"<eos>",
    b"a",
    b"b",
    b"c",
    b" ",
    b"\n",
    b"d",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xe3",
    b"\x81\x82",
];

/// Refuses a lone system message, as templates of alternating roles do.
const TEMPLATE: &str = "{% if messages[0].role == 'system' and messages | length == 1 %}\
    {{ raise_exception('roles must alternate') }}{% endif %}\
    {% for message in messages %}{{ message.content }}{% endfor %}{{ suffix }}";

/// A prompt with a newline is a script: the completion is what stands before
/// the newline, then the end. Any other is followed by logits of 4.0 for `a`,
/// 3.9 for `b` and 0 for `c` and `d`, for ever.
fn script(context: &[TokenId]) -> Vec<f32> {
    let banned = f32::NEG_INFINITY;
    match context.iter().position(|&id| id == NEWLINE) {
        Some(end) => {
            let mut row = vec![0.0; PIECES.len()];
            let generated = context.len() - end - 1;
            let next = context[..end].get(generated).copied().unwrap_or(EOS);
            row[next as usize] = 10.0;
            row
        }
        None => vec![banned, banned, 4.0, 3.9, 0.0, banned, banned, 0.0],
    }
}

/// What differs between servers.
pub struct Setup {
    pub engine: EngineConfig,
    pub context_length: u32,
    /// How long a forward pass takes.
    pub pace: Duration,
    /// The logits that follow a context.
    pub script: fn(&[TokenId]) -> Vec<f32>,
    pub end_of_sequence: Vec<TokenId>,
    pub access: Access,
    pub requests: RequestLimits,
    pub plugins: Limits,
    pub slow_reader: Duration,
    pub head: Duration,
    pub web: Web,
    /// The bytes of each token; the first two are special.
    pub pieces: Vec<Vec<u8>>,
    pub template: String,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            // A step gives one token, so that chunks can be counted.
            engine: EngineConfig {
                draft_rows: 0,
                ..EngineConfig::default()
            },
            context_length: 64,
            pace: Duration::ZERO,
            script,
            end_of_sequence: vec![EOS],
            access: Access::without_tokens(false),
            requests: RequestLimits {
                uploads_per_minute: 0,
                ..RequestLimits::default()
            },
            plugins: Limits {
                max_instances: 64,
                ..Limits::default()
            },
            slow_reader: Duration::from_secs(30),
            head: HEAD_TIMEOUT,
            web: Web::default(),
            pieces: PIECES.map(<[u8]>::to_vec).to_vec(),
            template: TEMPLATE.to_owned(),
        }
    }
}

pub struct Server {
    client: Http,
    pub service: Arc<Service>,
}

/// A client of a server, which may be another process.
pub struct Http {
    pub url: String,
}

/// An answer, read to its end.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The data of each event.
    pub fn events(&self) -> Vec<&str> {
        let blocks = self.text.split_terminator("\n\n");
        blocks
            .map(|block| block.strip_prefix("data: ").unwrap())
            .collect()
    }

    /// The body with everything replaced that differs from run to run.
    pub fn redacted(&self) -> String {
        let redact = |line: &str| match serde_json::from_str::<Value>(line) {
            Ok(mut value) if value.get("id").is_some() => {
                let kind = value["id"]
                    .as_str()
                    .unwrap()
                    .split('-')
                    .next()
                    .unwrap()
                    .to_owned();
                value["id"] = format!("{kind}-…").into();
                value["created"] = 0.into();
                // Has digests and times.
                value.as_object_mut().unwrap().remove("sluice");
                value.to_string()
            }
            _ => line.to_owned(),
        };
        let lines = self
            .text
            .lines()
            .map(|line| match line.strip_prefix("data: ") {
                Some(data) => format!("data: {}", redact(data)),
                None => redact(line),
            });
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl Server {
    /// The server most tests share: a context of 64 tokens, bodies of 64 KiB.
    pub fn shared() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| Self::start(&Setup::default()))
    }

    pub fn start(setup: &Setup) -> Self {
        let (service, _) = service(setup);
        let service = Arc::new(service);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = router(&service);
        let (slow_reader, head) = (setup.slow_reader, setup.head);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .thread_stack_size(STACK_BYTES)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let connections = Connections::new(listener, slow_reader, head);
                connections.serve(app, std::future::pending()).await;
            });
        });
        Self {
            client: Http { url },
            service,
        }
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> &str {
        self.client.url.trim_start_matches("http://")
    }

    /// Waits until nothing runs or waits any more.
    pub async fn idle(&self) {
        let idle = async {
            loop {
                let stats = self.service.engine.stats();
                if stats.running + stats.waiting == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let patience = Duration::from_mins(1);
        tokio::time::timeout(patience, idle)
            .await
            .expect("sequences went on without a reader");
    }
}

impl std::ops::Deref for Server {
    type Target = Http;

    fn deref(&self) -> &Http {
        &self.client
    }
}

impl Http {
    /// Sends a request and returns when its head is there.
    pub async fn open(&self, method: Method, path: &str, body: Body) -> Response<Body> {
        let client: Client<HttpConnector, Body> =
            Client::builder(TokioExecutor::new()).build_http();
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        client.request(request).await.unwrap().map(Body::new)
    }

    pub async fn send(&self, method: Method, path: &str, body: impl Into<Body>) -> Answer {
        let response = self.open(method, path, body.into()).await;
        let (head, body) = response.into_parts();
        let bytes: Bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.into()).unwrap();
        Answer {
            status: head.status,
            headers: head.headers,
            text,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, Body::empty()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, body.to_string()).await
    }

    /// A completion at temperature 0 with these further fields.
    pub async fn complete(&self, fields: Value) -> Value {
        let mut body = json!({"temperature": 0});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let answer = self.post("/v1/completions", &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{body}\n{}", answer.text);
        answer.json()
    }

    /// The text, finish reason and token count of a completion's one choice.
    pub async fn completed(&self, fields: Value) -> (String, String, u64) {
        let answer = self.complete(fields).await;
        let choice = &answer["choices"][0];
        (
            choice["text"].as_str().unwrap().to_owned(),
            choice["finish_reason"].as_str().unwrap().to_owned(),
            answer["usage"]["completion_tokens"].as_u64().unwrap(),
        )
    }

    /// The texts of a streamed completion at temperature 0, chunk by chunk.
    pub async fn deltas(&self, fields: Value) -> Vec<String> {
        let mut body = json!({"temperature": 0, "stream": true});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let answer = self.post("/v1/completions", &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        let mut events = answer.events();
        assert_eq!(events.pop(), Some("[DONE]"));
        events
            .iter()
            .map(|event| serde_json::from_str::<Value>(event).unwrap())
            .filter(|chunk| chunk["choices"][0]["finish_reason"].is_null())
            .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap().to_owned())
            .collect()
    }
}

pub fn component(path: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn test_guest(name: &str) -> Vec<u8> {
    component(&format!("tests/guests/dist/{name}.wasm"))
}

/// A service, and the thread of its engine.
pub fn service(setup: &Setup) -> (Service, JoinHandle<()>) {
    let runtime = Runtime::new(setup.plugins.clone()).unwrap();
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("http");
    let compiler = Compiler::new(env!("CARGO_BIN_EXE_sluice").into(), &cache).unwrap();
    let registry = Registry::new(runtime.clone(), compiler);
    for name in [
        "rules",
        "penalties",
        "dry",
        "grammar",
        "sampler",
        "mirostat",
        "adaptive-p",
    ] {
        registry
            .upload_builtin(&component(&format!("plugins/dist/{name}.wasm")))
            .unwrap();
    }
    for name in [
        "force",
        "counter",
        "boost",
        "misbehave-token",
        "slow",
        "force-sampler",
    ] {
        registry.upload(&test_guest(name)).unwrap();
    }
    let pieces: Vec<&[u8]> = setup.pieces.iter().map(Vec::as_slice).collect();
    let width = pieces.len();
    let special = [(0, "<bos>"), (1, "<eos>")];
    let tokenizer = Tokenizer::from_pieces(&pieces, &special, None).unwrap();
    let template = ChatTemplate::new(&setup.template, None, None).unwrap();
    let info = ModelInfo {
        vocabulary_size: width as u32,
        tokenizer_size: width as u32,
        end_of_sequence: setup.end_of_sequence.clone(),
        context_length: setup.context_length,
    };
    let model = ServedModel::new("scripted".into(), tokenizer, Some(template), &info).unwrap();
    let model = model.also_called(vec!["also-scripted".into()]);
    let (pace, script) = (setup.pace, setup.script);
    let (engine, thread) = engine::spawn(setup.engine, info, move || {
        let script = move |context: &[TokenId]| {
            std::thread::sleep(pace);
            script(context)
        };
        Ok::<_, Infallible>(Box::new(ScriptedModel::new(width, script)) as Box<dyn Model>)
    })
    .unwrap();
    let limits = RequestLimits {
        request_bytes: 64 << 10,
        plugin_bytes: 1 << 20,
        choices: setup.engine.max_waiting.min(128),
        ..setup.requests
    };
    let registry = Arc::new(registry);
    let metrics = Metrics::new(engine.clone(), runtime.clone(), registry.clone());
    let service = Service {
        model,
        engine,
        runtime,
        registry,
        limits,
        access: setup.access.clone(),
        upload_rate: UploadRate::per_minute(setup.requests.uploads_per_minute),
        concurrency: Concurrency::per_caller(setup.requests.per_caller),
        lifecycle: Lifecycle::default(),
        web: setup.web.clone(),
        metrics: Arc::new(metrics),
    };
    (service, thread)
}
