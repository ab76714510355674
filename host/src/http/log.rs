//! What becomes known of each request, and where it is written: the metrics, a
//! line of the access log, a span.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::access::Caller;
use super::lifecycle::{PROBES, held};
use super::{REQUEST_ID, Service};
use crate::telemetry::{Generation, Metrics, RequestFacts, RequestSpan};

/// How requests are written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AccessLog {
    #[default]
    Off,
    /// One line of words.
    Text,
    /// One JSON object on a line.
    Json,
}

/// The status of a request whose client left before it was answered, as nginx
/// writes it.
const HUNG_UP: u16 = 499;

/// What is generated for a request, noted while it is. Requests have one only
/// where it is wanted.
#[derive(Clone, Debug)]
pub(super) struct Notes {
    /// The mark of its sequences, if its steps are wanted too.
    pub(super) mark: Option<u64>,
    generation: Arc<Mutex<Option<Generation>>>,
}

impl Notes {
    fn new(mark: Option<u64>) -> Self {
        Self {
            mark,
            generation: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Generation>> {
        self.generation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// This is about to be generated.
    pub(super) fn begin(&self, generation: Generation) {
        *self.lock() = Some(generation);
    }

    /// The first token is there.
    pub(super) fn first_token(&self, after: Duration) {
        if let Some(generation) = &mut *self.lock() {
            generation.first_token = Some((Instant::now(), after));
        }
    }

    /// A choice has ended for this reason, with so many tokens.
    pub(super) fn ended(&self, reason: &'static str, cached: usize, completion: usize) {
        if let Some(generation) = &mut *self.lock() {
            generation.reasons.push(reason);
            generation.cached_tokens += cached;
            generation.completion_tokens += completion;
        }
    }
}

/// Counts each request, and writes it down once its answer has been sent or
/// nobody wants it any more.
pub(super) async fn observe(
    State(service): State<Arc<Service>>,
    mut request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    // A path that is no route must not become a name of its own.
    let route = route.map_or("none", MatchedPath::as_str).to_owned();
    let mut count = Count {
        metrics: service.metrics.clone(),
        route,
        status: HUNG_UP,
    };
    let Some(mut entry) = Entry::of(&service, &request, &count.route) else {
        let response = next.run(request).await;
        count.status = response.status().as_u16();
        return response;
    };
    request.extensions_mut().insert(entry.notes.clone());
    let response = next.run(request).await;
    count.status = response.status().as_u16();
    entry.facts.status = count.status;
    let caller = response.extensions().get::<Caller>();
    entry.facts.caller = caller.and_then(|Caller(name)| name.clone());
    held(response, entry)
}

/// Counts a request when it is dropped: when the head of its answer is there, or
/// when its client left before.
struct Count {
    metrics: Arc<Metrics>,
    route: String,
    status: u16,
}

impl Drop for Count {
    fn drop(&mut self) {
        self.metrics.answered(&self.route, self.status);
    }
}

/// What is written of a request when it is dropped.
#[derive(Debug)]
struct Entry {
    format: AccessLog,
    span: Option<RequestSpan>,
    time: Timestamp,
    begun: Instant,
    facts: RequestFacts,
    notes: Notes,
}

impl Entry {
    /// None if nobody wants to know of it.
    fn of(service: &Service, request: &Request, route: &str) -> Option<Self> {
        let format = service.web.log;
        let method = request.method().as_str();
        let path = request.uri().path();
        // Probes come every few seconds and tell nothing.
        let traces = service.web.traces.as_ref();
        let traces = traces.filter(|_| !PROBES.contains(&path));
        let span = traces.and_then(|traces| traces.begin(method, route, request.headers()));
        if format == AccessLog::Off && span.is_none() {
            return None;
        }
        Some(Self {
            format,
            notes: Notes::new(span.as_ref().map(RequestSpan::mark)),
            span,
            time: Timestamp::now(),
            begun: Instant::now(),
            facts: RequestFacts {
                id: text(request.headers().get(REQUEST_ID)),
                method: method.to_owned(),
                path: path.to_owned(),
                route: route.to_owned(),
                caller: None,
                status: HUNG_UP,
                generation: None,
            },
        })
    }

    fn line(&self, took: Duration) -> Option<String> {
        match self.format {
            AccessLog::Off => None,
            AccessLog::Text => Some(self.words(took)),
            AccessLog::Json => Some(self.object(took).to_string()),
        }
    }

    fn words(&self, took: Duration) -> String {
        let facts = &self.facts;
        let caller = facts.caller.as_deref().unwrap_or("-");
        // Escaped, so that no path can write a line of its own.
        let path = facts.path.escape_debug();
        let (time, id) = (self.time, &facts.id);
        let (method, status) = (&facts.method, facts.status);
        let ms = took.as_millis();
        let mut line = format!("{time} {id} {caller} {method} {path} {status} {ms} ms");
        if let Some(span) = &self.span {
            let _ = write!(line, " trace={}", span.trace_id());
        }
        if let Some(generation) = &facts.generation {
            let first_token = generation.first_token.map_or_else(
                || "-".to_owned(),
                |(_, after)| after.as_millis().to_string(),
            );
            let _ = write!(
                line,
                " model={} prompt={} cached={} completion={} first_token_ms={first_token} \
                 reasons={} stages={}",
                generation.model.escape_debug(),
                generation.prompt_tokens,
                generation.cached_tokens,
                generation.completion_tokens,
                generation.reasons.join(","),
                generation.stages.join(","),
            );
        }
        line
    }

    fn object(&self, took: Duration) -> Value {
        let facts = &self.facts;
        let mut line = json!({
            "time": self.time.to_string(),
            "request_id": facts.id,
            "caller": facts.caller,
            "method": facts.method,
            "path": facts.path,
            "route": facts.route,
            "status": facts.status,
            "ms": took.as_millis() as u64,
        });
        if let Some(span) = &self.span {
            line["trace_id"] = span.trace_id().into();
        }
        if let Some(generation) = &facts.generation {
            let first_token = generation.first_token;
            line["model"] = generation.model.clone().into();
            line["stream"] = generation.stream.into();
            line["prompt_tokens"] = generation.prompt_tokens.into();
            line["cached_tokens"] = generation.cached_tokens.into();
            line["completion_tokens"] = generation.completion_tokens.into();
            line["first_token_ms"] = first_token
                .map(|(_, after)| after.as_millis() as u64)
                .into();
            line["finish_reasons"] = generation.reasons.clone().into();
            line["stages"] = generation.stages.clone().into();
        }
        line
    }
}

fn text(value: Option<&axum::http::HeaderValue>) -> String {
    let text = value.and_then(|value| value.to_str().ok());
    text.unwrap_or_default().to_owned()
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.facts.generation = self.notes.lock().take();
        if let Some(line) = self.line(self.begun.elapsed()) {
            // Who reads the log may have gone; that is no request's fault.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
        if let Some(span) = self.span.take() {
            span.end(self.facts.clone());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            format: AccessLog::Text,
            span: None,
            time: "2026-01-02T03:04:05Z".parse().unwrap(),
            begun: Instant::now(),
            notes: Notes::new(None),
            facts: RequestFacts {
                id: "req-1".into(),
                method: "GET".into(),
                path: "/v1/models/a\nb".into(),
                route: "/v1/models/{*id}".into(),
                caller: None,
                status: 404,
                generation: None,
            },
        }
    }

    #[test]
    fn a_request_is_one_line_in_either_form() {
        let mut entry = entry();
        let took = Duration::from_millis(12);
        assert_eq!(
            entry.line(took).unwrap(),
            r"2026-01-02T03:04:05Z req-1 - GET /v1/models/a\nb 404 12 ms"
        );
        entry.format = AccessLog::Json;
        entry.facts.caller = Some("ann".into());
        assert_eq!(
            entry.line(took).unwrap(),
            r#"{"time":"2026-01-02T03:04:05Z","request_id":"req-1","caller":"ann","method":"GET","path":"/v1/models/a\nb","route":"/v1/models/{*id}","status":404,"ms":12}"#
        );
        entry.format = AccessLog::Off;
        assert_eq!(entry.line(took), None);
    }

    #[test]
    fn a_generation_says_what_it_was() {
        let mut entry = entry();
        entry.notes.begin(Generation {
            operation: "chat",
            model: "a b".into(),
            stream: true,
            n_choices: 2,
            prompt_tokens: 5,
            stages: vec!["rules@0.1.0".into(), "sampler@0.1.0".into()],
            ..Generation::default()
        });
        entry.notes.first_token(Duration::from_millis(3));
        entry.notes.ended("stop", 4, 7);
        entry.notes.ended("length", 0, 9);
        entry.facts.generation = entry.notes.lock().clone();
        entry.facts.path = "/v1/chat/completions".into();
        let took = Duration::from_millis(12);
        assert_eq!(
            entry.line(took).unwrap(),
            "2026-01-02T03:04:05Z req-1 - GET /v1/chat/completions 404 12 ms model=a b prompt=5 \
             cached=4 completion=16 first_token_ms=3 reasons=stop,length \
             stages=rules@0.1.0,sampler@0.1.0"
        );
        entry.format = AccessLog::Json;
        let line: Value = serde_json::from_str(&entry.line(took).unwrap()).unwrap();
        for (name, value) in [
            ("model", json!("a b")),
            ("stream", json!(true)),
            ("prompt_tokens", json!(5)),
            ("cached_tokens", json!(4)),
            ("completion_tokens", json!(16)),
            ("first_token_ms", json!(3)),
            ("finish_reasons", json!(["stop", "length"])),
            ("stages", json!(["rules@0.1.0", "sampler@0.1.0"])),
        ] {
            assert_eq!(line[name], value, "{name}");
        }
        entry.format = AccessLog::Off;
    }
}
