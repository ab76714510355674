//! Requests, from their bytes to the last byte of the answer, by the whole
//! service but for a real model.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use sluice::engine::fake::ScriptedModel;
use sluice::engine::{self, EngineConfig, Model, ModelInfo, TokenId};
use sluice::http::errors::Code;
use sluice::http::{
    Access, Concurrency, Lifecycle, RequestLimits, ServedModel, Service, UploadRate, Web, router,
};
use sluice::plugin::{Compiler, Limits, Registry, Runtime, STACK_BYTES};
use sluice::telemetry::Metrics;
use sluice::text::{ChatTemplate, Tokenizer};
use tower::ServiceExt;

const CONTEXT: u32 = 48;
const CHOICES: usize = 3;
const BOS: TokenId = 0;
const EOS: TokenId = 1;
/// The pieces that are no single bytes.
const WORDS: [&[u8]; 12] = [
    b"<s>",
    b"</s>",
    b"{\"",
    b"\": ",
    b"true",
    b" the",
    b" a",
    b"<tool_call>",
    b"</tool_call>",
    b"\"name\"",
    b"\xf0\x9f",
    b"\x98\x80",
];
const TEMPLATE: &str = "{% if messages[0].role == 'assistant' %}{{ raise_exception('no') }}{% endif \
    %}{% for tool in tools or [] %}{{ tool | tojson | length }}{% endfor %}{% for message in messages \
    %}{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>{{ \
    call.function.arguments | tojson | length }}{% endfor %}{% endfor %}{{ suffix }}";
/// The shipped plugins, of which none may fail on any parameters that it takes.
const SHIPPED: [&str; 7] = [
    "rules",
    "penalties",
    "dry",
    "grammar",
    "sampler",
    "mirostat",
    "adaptive-p",
];

static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();

/// Names the server's executable, which compiles the plugins. Without that it is
/// the one that `cargo build --release` makes.
pub fn compile_with(executable: impl Into<PathBuf>) {
    // The first one stays.
    let _ = EXECUTABLE.set(executable.into());
}

/// An endpoint, and a body for it: the answer is one that the interface
/// documents, and never a failure of the server's or of a shipped plugin's.
pub fn request(bytes: &[u8]) -> bool {
    let Some((&endpoint, body)) = bytes.split_first() else {
        return false;
    };
    let path = ["/v1/completions", "/v1/chat/completions"][usize::from(endpoint % 2)];
    let (status, answer) = Server::shared().post(path, body);
    let text = std::str::from_utf8(&answer).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    if status != StatusCode::OK {
        check_error(status, &parse(text));
    } else if let Some(data) = text.strip_prefix("data: ") {
        check_stream(data);
    } else if !text.starts_with(':') {
        check_answer(&parse(text));
    }
    status == StatusCode::OK
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn check_error(status: StatusCode, answer: &Value) {
    let error = &answer["error"];
    let code = Code::ALL.iter().find(|code| error["code"] == code.name());
    let Some(code) = code else {
        panic!("an unknown code: {answer}")
    };
    assert_eq!(code.status(), status.as_u16(), "{answer}");
    assert_eq!(error["type"], code.kind(), "{answer}");
    assert!(error["message"].is_string(), "{answer}");
    assert!(
        error["param"].is_string() || error["param"].is_null(),
        "{answer}"
    );
    assert!(
        !matches!(
            code,
            Code::InternalError
                | Code::EngineError
                | Code::Cancelled
                | Code::Overloaded
                | Code::Stopped
                | Code::PluginDisabled
        ),
        "{answer}"
    );
    check_fault(error);
}

/// A shipped plugin may refuse, or find that nothing can follow; it may not
/// break.
fn check_fault(error: &Value) {
    let message = error["message"].as_str().unwrap_or_default();
    let broken = [
        " trapped: ",
        " panicked",
        "executed `unreachable`",
        "recursed until",
    ];
    let is_fault = error["code"] == Code::PluginError.name();
    assert!(
        !is_fault || !broken.iter().any(|words| message.contains(words)),
        "{error}"
    );
}

fn check_stream(text: &str) {
    let events: Vec<&str> = text.trim_end().split("\n\ndata: ").collect();
    let (last, chunks) = events.split_last().unwrap_or((&"", &[]));
    for chunk in chunks {
        assert!(parse(chunk)["choices"].is_array(), "{chunk}");
    }
    if *last != "[DONE]" {
        let error = &parse(last)["error"];
        assert!(error["code"].is_string(), "{last}");
        check_fault(error);
    }
}

fn check_answer(answer: &Value) {
    let choices = answer["choices"].as_array().map_or(&[][..], Vec::as_slice);
    assert!((1..=CHOICES).contains(&choices.len()), "{answer}");
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index, "{answer}");
        assert!(choice["finish_reason"].is_string(), "{answer}");
    }
    let usage = &answer["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap_or(u64::MAX);
    let (prompt, completion) = (count("prompt_tokens"), count("completion_tokens"));
    assert!(
        completion <= u64::from(CONTEXT) * choices.len() as u64,
        "{answer}"
    );
    assert_eq!(count("total_tokens"), prompt + completion, "{answer}");
}

struct Server {
    runtime: tokio::runtime::Runtime,
    router: Router,
}

impl Server {
    fn shared() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .thread_stack_size(STACK_BYTES)
                .enable_all()
                .build();
            Self {
                runtime: runtime.unwrap_or_else(|error| panic!("{error}")),
                router: router(&Arc::new(service())),
            }
        })
    }

    fn post(&self, path: &str, body: &[u8]) -> (StatusCode, Vec<u8>) {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(Body::from(body.to_vec()))
            .unwrap_or_else(|error| panic!("{error}"));
        self.runtime.block_on(async {
            let Ok(response) = self.router.clone().oneshot(request).await;
            let (head, body) = response.into_parts();
            let body = body.collect().await;
            let body = body.unwrap_or_else(|error| panic!("the answer breaks off: {error}"));
            (head.status, body.to_bytes().to_vec())
        })
    }
}

/// Panics where there is no service: nothing could be checked then.
fn service() -> Service {
    fn must<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
        result.unwrap_or_else(|error| panic!("no service: {error}"))
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let executable = EXECUTABLE.get_or_init(|| root.join("target/release/sluice"));
    let cache = std::env::temp_dir().join("sluice-fuzz");
    let runtime = must(Runtime::new(Limits {
        max_instances: 64,
        ..Limits::default()
    }));
    let compiler = must(Compiler::new(executable.clone(), &cache));
    let registry = Registry::new(runtime.clone(), compiler);
    for name in SHIPPED {
        let component = must(std::fs::read(
            root.join(format!("plugins/dist/{name}.wasm")),
        ));
        must(registry.upload_builtin(&component));
    }
    let bytes: Vec<u8> = (0..=255).collect();
    let pieces: Vec<&[u8]> = WORDS.into_iter().chain(bytes.chunks(1)).collect();
    let special = [(BOS, "<s>"), (EOS, "</s>")];
    let tokenizer = must(Tokenizer::from_pieces(&pieces, &special, None));
    let template = must(ChatTemplate::new(TEMPLATE, None, None));
    let width = pieces.len();
    let info = ModelInfo {
        vocabulary_size: width as u32,
        tokenizer_size: width as u32,
        end_of_sequence: vec![EOS],
        context_length: CONTEXT,
    };
    let model = must(ServedModel::new(
        "scripted".into(),
        tokenizer,
        Some(template),
        &info,
    ));
    let (engine, _) = must(engine::spawn(EngineConfig::default(), info, move || {
        let script = move |context: &[TokenId]| row(context, width);
        Ok::<_, Infallible>(Box::new(ScriptedModel::new(width, script)) as Box<dyn Model>)
    }));
    let registry = Arc::new(registry);
    let metrics = Metrics::new(engine.clone(), runtime.clone(), registry.clone());
    Service {
        model,
        engine,
        runtime,
        registry,
        limits: RequestLimits {
            choices: CHOICES,
            ..RequestLimits::default()
        },
        access: Access::without_tokens(true),
        upload_rate: UploadRate::per_minute(0),
        concurrency: Concurrency::per_caller(0),
        lifecycle: Lifecycle::default(),
        web: Web::default(),
        metrics: Arc::new(metrics),
    }
}

/// Logits that hang on the last token and the position, with ties among them.
fn row(context: &[TokenId], width: usize) -> Vec<f32> {
    let last = context.last().copied().unwrap_or_default();
    let seed = last.wrapping_mul(0x9E37_79B9) ^ context.len() as u32;
    (0..width as u32)
        .map(|id| {
            let mixed = (id ^ seed).wrapping_mul(0x85EB_CA6B);
            (mixed >> 27) as f32 / 4.0
        })
        .collect()
}
