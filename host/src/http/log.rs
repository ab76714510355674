//! What is written down of each request.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::json;

use super::access::Caller;
use super::lifecycle::held;
use super::{REQUEST_ID, Service};

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

/// Counts each request, and writes it down once its answer has been sent or
/// nobody wants it any more.
pub(super) async fn observe(
    State(service): State<Arc<Service>>,
    request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut entry = Entry {
        format: service.web.log,
        time: Timestamp::now(),
        begun: Instant::now(),
        id: text(request.headers().get(REQUEST_ID)),
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        caller: None,
        status: HUNG_UP,
    };
    let response = next.run(request).await;
    entry.status = response.status().as_u16();
    // A path that is no route must not become a name of its own.
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    service.metrics.answered(route, entry.status);
    if entry.format == AccessLog::Off {
        return response;
    }
    let caller = response.extensions().get::<Caller>();
    entry.caller = caller.and_then(|Caller(name)| name.clone());
    held(response, entry)
}

fn text(value: Option<&axum::http::HeaderValue>) -> String {
    let text = value.and_then(|value| value.to_str().ok());
    text.unwrap_or_default().to_owned()
}

/// A line of the log, written when it is dropped.
#[derive(Clone, Debug)]
struct Entry {
    format: AccessLog,
    time: Timestamp,
    begun: Instant,
    id: String,
    method: String,
    path: String,
    caller: Option<String>,
    status: u16,
}

impl Entry {
    fn line(&self, took: Duration) -> Option<String> {
        let ms = took.as_millis() as u64;
        match self.format {
            AccessLog::Off => None,
            AccessLog::Text => {
                let caller = self.caller.as_deref().unwrap_or("-");
                // Escaped, so that no path can write a line of its own.
                let path = self.path.escape_debug();
                let (time, id) = (self.time, &self.id);
                let (method, status) = (&self.method, self.status);
                Some(format!(
                    "{time} {id} {caller} {method} {path} {status} {ms} ms"
                ))
            }
            AccessLog::Json => {
                let line = json!({
                    "time": self.time.to_string(),
                    "request_id": self.id,
                    "caller": self.caller,
                    "method": self.method,
                    "path": self.path,
                    "status": self.status,
                    "ms": ms,
                });
                Some(line.to_string())
            }
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(line) = self.line(self.begun.elapsed()) {
            // Who reads the log may have gone; that is no request's fault.
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_in_either_form() {
        let mut entry = Entry {
            format: AccessLog::Text,
            time: "2026-01-02T03:04:05Z".parse().unwrap(),
            begun: Instant::now(),
            id: "req-1".into(),
            method: "GET".into(),
            path: "/v1/models/a\nb".into(),
            caller: None,
            status: 404,
        };
        let took = Duration::from_millis(12);
        assert_eq!(
            entry.line(took).unwrap(),
            r"2026-01-02T03:04:05Z req-1 - GET /v1/models/a\nb 404 12 ms"
        );
        entry.format = AccessLog::Json;
        entry.caller = Some("ann".into());
        assert_eq!(
            entry.line(took).unwrap(),
            r#"{"time":"2026-01-02T03:04:05Z","request_id":"req-1","caller":"ann","method":"GET","path":"/v1/models/a\nb","status":404,"ms":12}"#
        );
        entry.format = AccessLog::Off;
        assert_eq!(entry.line(took), None);
    }
}
