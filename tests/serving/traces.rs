//! Spans of the real program, as a collector gets them: a small one, which stands
//! in for those that people run.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::routing::post;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as Attribute};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What a collector has been sent.
#[derive(Clone, Default)]
struct Collector {
    taken: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    /// While it is away it takes nothing.
    away: Arc<AtomicBool>,
    /// A batch that is sent again is the same.
    refused: Arc<Mutex<BTreeSet<Bytes>>>,
}

impl Collector {
    fn serve(listener: TcpListener) -> Self {
        let collector = Self::default();
        let router = Router::new().route("/v1/traces", post(take));
        let router = router.with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        collector
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.taken.lock().unwrap();
        let resources = requests.iter().flat_map(|r| &r.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    fn n_refused(&self) -> usize {
        self.refused.lock().unwrap().len()
    }

    async fn wait_until(&self, done: impl Fn(&Self) -> bool) {
        let wait = async {
            while !done(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_mins(1), wait).await;
        waited
            .unwrap_or_else(|_| panic!("{} refused, taken: {:?}", self.n_refused(), self.spans()));
    }
}

async fn take(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> StatusCode {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    if collector.away.load(Relaxed) {
        collector.refused.lock().unwrap().insert(body);
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    collector.taken.lock().unwrap().push(request);
    StatusCode::OK
}

/// A server of its own, ended with the test.
struct Program {
    child: Child,
    url: String,
    data: tempfile::TempDir,
    output: Option<std::thread::JoinHandle<String>>,
}

impl Program {
    fn start(collector: &str, variables: &[(&str, &str)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(["serve", "--port", "0", "--access-log", "json", "--data"])
            .arg(data.path())
            .args(["--otlp-endpoint", collector])
            .env("OTEL_BSP_SCHEDULE_DELAY", "50")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let url = line.trim_end().strip_prefix("listening on ").unwrap();
        Self {
            url: url.to_owned(),
            child,
            data,
            output: Some(std::thread::spawn(move || {
                let mut rest = String::new();
                stdout.read_to_string(&mut rest).unwrap();
                rest
            })),
        }
    }

    async fn send(&self, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> String {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let method = if body.is_some() {
            Method::POST
        } else {
            Method::GET
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map_or_else(String::new, |body| body.to_string());
        let request = request.body(Full::from(body)).unwrap();
        let response = client.request(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.into()).unwrap()
    }

    /// Tells it to end, and returns its access log and its log. Blocks: the
    /// collector needs a thread of its own meanwhile.
    fn stop(mut self) -> (Vec<Value>, String) {
        let id = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(id, Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        let log = self.output.take().unwrap().join().unwrap();
        let log = log.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut errors = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut errors).unwrap();
        (log.collect(), errors)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.data.path();
    }
}

/// The attributes, as JSON.
fn attributes(list: &[KeyValue]) -> HashMap<&str, Value> {
    fn json(value: &Attribute) -> Value {
        match value {
            Attribute::StringValue(text) => text.clone().into(),
            Attribute::BoolValue(value) => (*value).into(),
            Attribute::IntValue(value) => (*value).into(),
            Attribute::DoubleValue(value) => (*value).into(),
            Attribute::ArrayValue(list) => {
                let values = list
                    .values
                    .iter()
                    .map(|value| value.value.as_ref().unwrap());
                values.map(json).collect()
            }
            other => panic!("{other:?}"),
        }
    }
    let value = |pair: &KeyValue| json(pair.value.as_ref().unwrap().value.as_ref().unwrap());
    list.iter()
        .map(|pair| (pair.key.as_str(), value(pair)))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

/// The attributes that the table has for such a span.
fn documented(span: &str) -> BTreeSet<String> {
    let document = std::fs::read_to_string(crate::in_repository("docs/operations.md")).unwrap();
    let table = document.split("| attribute | on |").nth(1).unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells
        .filter(|cells| [span, "both"].contains(&cells[2]))
        .flat_map(|cells| {
            let names = cells[1].split('`').skip(1).step_by(2);
            names.map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
}

const SERVER: i32 = 2;
const INTERNAL: i32 = 1;
const ERROR: i32 = 2;
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_span_of_its_caller_and_its_steps_are_spans_of_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let collector = Collector::serve(listener);
    let server = Program::start(&address, &[]);
    let body = json!({
        "prompt": "The quick brown fox jumps over the lazy", "max_tokens": 40, "n": 2,
        "temperature": 0, "ignore_eos": true, "stream": true,
    });
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let headers = [("traceparent", &parent[..]), ("x-request-id", "traced")];
    let path = "/v1/completions";
    let answer = server.send(path, &headers, Some(body.clone())).await;
    assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
    // Its caller does not record it, so it is not recorded here.
    let unsampled = "00-11111111111111111111111111111111-b7ad6b7169203331-00";
    let headers = [("traceparent", unsampled), ("x-request-id", "unsampled")];
    server.send(path, &headers, Some(body)).await;
    // What is no parent begins a trace.
    let headers = [("traceparent", "00-zz-1-01"), ("x-request-id", "refused")];
    server
        .send(path, &headers, Some(json!({"prompt": 1.5})))
        .await;
    server.send("/nothing/here", &[], None).await;
    server.send("/health", &[], None).await;
    let (log, errors) = server.stop();
    assert!(errors.contains(&address), "{errors}");

    let spans = collector.spans();
    let requests = collector.taken.lock().unwrap().clone();
    for resource in requests.iter().flat_map(|request| &request.resource_spans) {
        let resource = resource.resource.as_ref().unwrap();
        assert_eq!(attributes(&resource.attributes)["service.name"], "sluice");
    }
    let requests = named(&spans, "POST /v1/completions");
    let ids: Vec<_> = requests
        .iter()
        .map(|span| attributes(&span.attributes)["sluice.request.id"].clone())
        .collect();
    assert_eq!(ids, ["traced", "refused"]);

    let request = requests[0];
    assert_eq!(hex(&request.trace_id), TRACE);
    assert_eq!(hex(&request.parent_span_id), "b7ad6b7169203331");
    assert_eq!(request.kind, SERVER);
    assert_eq!(request.status.as_ref().map_or(0, |status| status.code), 0);
    let of_request = attributes(&request.attributes);
    for (name, expected) in [
        ("http.request.method", json!("POST")),
        ("http.route", json!(path)),
        ("url.path", json!(path)),
        ("http.response.status_code", json!(200)),
        ("gen_ai.operation.name", json!("text_completion")),
        ("gen_ai.request.choice.count", json!(2)),
        ("gen_ai.usage.output_tokens", json!(80)),
        (
            "gen_ai.response.finish_reasons",
            json!(["length", "length"]),
        ),
        ("sluice.stream", json!(true)),
    ] {
        assert_eq!(of_request[name], expected, "{name}");
    }
    let stages = of_request["sluice.stages"].as_array().unwrap();
    let first = stages[0].as_str().unwrap();
    let last = stages[stages.len() - 1].as_str().unwrap();
    assert!(
        first.starts_with("rules@") && last.starts_with("sampler@"),
        "{stages:?}"
    );
    let n_prompt = of_request["gen_ai.usage.input_tokens"].as_i64().unwrap();
    assert!((5..20).contains(&n_prompt), "{n_prompt}");
    let events: Vec<_> = request.events.iter().map(|event| &event.name[..]).collect();
    assert_eq!(events.len(), 2, "{events:?}");
    let at = |name: &str| {
        let event = request.events.iter().find(|event| event.name == name);
        event.unwrap().time_unix_nano
    };
    let (begun, ended) = (request.start_time_unix_nano, request.end_time_unix_nano);
    assert!(begun <= at("first step") && at("first step") < at("first token"));
    assert!(at("first token") < ended);

    let steps = named(&spans, "step");
    assert!(steps.iter().all(|step| step.trace_id == request.trace_id));
    assert!(
        steps
            .iter()
            .all(|step| step.parent_span_id == request.span_id)
    );
    assert!(steps.iter().all(|step| step.kind == INTERNAL));
    let inside = |step: &&Span| {
        begun <= step.start_time_unix_nano
            && step.start_time_unix_nano < step.end_time_unix_nano
            && step.end_time_unix_nano <= ended
    };
    assert!(steps.iter().all(inside));
    let n_shown = of_request["sluice.steps.shown"].as_i64().unwrap();
    let n_steps = of_request["sluice.steps.count"].as_i64().unwrap();
    assert_eq!(steps.len() as i64, n_shown);
    assert!(
        n_shown >= 16.min(n_steps) && n_shown <= n_steps,
        "{n_shown} {n_steps}"
    );
    let of_steps: Vec<_> = steps
        .iter()
        .map(|step| attributes(&step.attributes))
        .collect();
    let first = &of_steps[0];
    // The choices begin in one step and both compute the prompt, or the second
    // begins later with what the first has computed.
    let prompt_rows = first["sluice.batch.prompt_rows"].as_i64().unwrap();
    assert!(
        [n_prompt, 2 * n_prompt].contains(&prompt_rows),
        "{prompt_rows}"
    );
    assert!(
        of_steps
            .iter()
            .any(|step| step["sluice.batch.sequences"] == 2)
    );
    let sum = |name: &str| {
        of_steps
            .iter()
            .map(|step| step[name].as_f64().unwrap())
            .sum::<f64>()
    };
    let forward = of_request["sluice.time.forward_ms"].as_f64().unwrap();
    assert!(sum("sluice.time.forward_ms") > 0.0);
    assert!(sum("sluice.time.forward_ms") <= forward * 1.000_001);

    let refused = requests[1];
    assert_eq!(refused.parent_span_id, Vec::<u8>::new());
    assert_eq!(
        attributes(&refused.attributes)["http.response.status_code"],
        400
    );
    assert_eq!(refused.status.as_ref().map_or(0, |status| status.code), 0);
    assert_eq!(named(&spans, "GET none").len(), 1);
    assert_eq!(spans.len(), steps.len() + 3, "{spans:#?}");

    let seen = |spans: &[&Span]| -> BTreeSet<String> {
        let attributes = spans.iter().flat_map(|span| &span.attributes);
        attributes.map(|pair| pair.key.clone()).collect()
    };
    let without: BTreeSet<_> = ["sluice.caller", "error.type"].map(str::to_owned).into();
    assert_eq!(seen(&requests), &documented("request") - &without);
    assert_eq!(seen(&steps), documented("step"));

    let line = |id: &str| log.iter().find(|line| line["request_id"] == id).unwrap();
    assert_eq!(line("traced")["trace_id"], TRACE);
    assert_eq!(line("traced")["completion_tokens"], 80);
    assert_eq!(
        line("traced")["finish_reasons"],
        json!(["length", "length"])
    );
    assert!(line("traced")["first_token_ms"].is_u64());
    assert_eq!(line("unsampled")["trace_id"], Value::Null);
    assert_eq!(line("unsampled")["stages"], line("traced")["stages"]);
    assert_eq!(line("refused")["status"], 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_that_fails_is_an_error_of_its_span() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let collector = Collector::serve(listener);
    let server = Program::start(&address, &[("OTEL_SERVICE_NAME", "gate")]);
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let upload = Request::builder()
        .method(Method::PUT)
        .uri(format!("{}/v1/plugins", server.url))
        .body(Full::from(crate::guest("misbehave-token")))
        .unwrap();
    assert!(client.request(upload).await.unwrap().status().is_success());
    let body = json!({
        "prompt": "a", "stream": true, "temperature": 0, "ignore_eos": true,
        "processors": [{"plugin": "misbehave-token", "params": {"fault": "trap", "after": 3}}],
    });
    let answer = server.send("/v1/completions", &[], Some(body)).await;
    assert!(answer.contains("plugin_error"), "{answer}");
    server.stop();
    let spans = collector.spans();
    let request = named(&spans, "POST /v1/completions")[0];
    let of_request = attributes(&request.attributes);
    assert_eq!(of_request["error.type"], "plugin_error");
    assert_eq!(
        of_request["gen_ai.response.finish_reasons"],
        json!(["plugin_error"])
    );
    assert_eq!(of_request["http.response.status_code"], 200);
    assert_eq!(request.status.as_ref().unwrap().code, ERROR);
    let requests = collector.taken.lock().unwrap();
    let resource = requests[0].resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(attributes(&resource.attributes)["service.name"], "gate");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_is_complained_of_once_and_found_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let collector = Collector::serve(listener);
    collector.away.store(true, Relaxed);
    let server = Program::start(&address, &[]);
    let body = json!({"prompt": "a", "max_tokens": 2});
    for n_before in 0..3 {
        let answer = server
            .send("/v1/completions", &[], Some(body.clone()))
            .await;
        assert!(answer.contains("choices"), "{answer}");
        // One batch is exported after another: when the third is, two have failed.
        collector.wait_until(|c| c.n_refused() > n_before).await;
    }
    let metrics = server.send("/metrics", &[], None).await;
    let exported = "sluice_spans_total{state=\"exported\"} 0\n";
    assert!(metrics.contains(exported), "{metrics}");
    collector.away.store(false, Relaxed);
    server.send("/v1/completions", &[], Some(body)).await;
    // The request's own at least; how many of the others were not lost is a
    // matter of timing.
    collector.wait_until(|c| !c.spans().is_empty()).await;
    let (log, errors) = server.stop();
    assert_eq!(log.len(), 5);
    assert_eq!(errors.matches("takes no spans").count(), 1, "{errors}");
    assert_eq!(errors.matches("takes spans again").count(), 1, "{errors}");
}

#[test]
fn what_cannot_be_exported_to_is_refused_at_the_start() {
    let refusal = |url: &str, variables: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(["serve", "--port", "0", "--otlp-endpoint", url])
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{url}");
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refusal("localhost:4318", &[]);
    assert!(
        error.contains("--otlp-endpoint") && error.contains("http://"),
        "{error}"
    );
    let variable = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let error = refusal("http://127.0.0.1:4318", &[variable]);
    assert!(
        error.contains("OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`"),
        "{error}"
    );
}
