//! Where spans go: a collector that speaks OTLP over HTTP.

mod environment;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response, Uri};
use opentelemetry::Key;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};

pub(super) use environment::Environment;

/// Largest answer of a collector that is read.
const ANSWER_BYTES: u64 = 64 << 10;

/// The base address of a collector; spans go to `v1/traces` below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collector(String);

impl Collector {
    fn traces_url(&self) -> String {
        format!("{}/v1/traces", self.0)
    }
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused =
            |why: String| format!("{why}; a collector is named like http://127.0.0.1:4318");
        let url: Uri = text.parse().map_err(|error| refused(format!("{error}")))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(refused(
                "it begins with neither http:// nor https://".into(),
            ));
        }
        if url.host().is_none_or(str::is_empty) {
            return Err(refused("it names no host".into()));
        }
        if url.authority().is_some_and(|a| a.as_str().contains('@')) {
            let why = "it has a user or a password, which belong in OTEL_EXPORTER_OTLP_HEADERS";
            return Err(refused(why.into()));
        }
        let behind_host = url
            .authority()
            .and_then(|a| a.as_str().strip_prefix(a.host()));
        if url.port().is_none() && behind_host.is_some_and(|port| !port.is_empty()) {
            return Err(refused("its port is none".into()));
        }
        if url.query().is_some() {
            return Err(refused("it has a query".into()));
        }
        if url.port().is_some_and(|port| port.as_str() == "4317") {
            let message = "4317 is the port of OTLP over gRPC, which this server does not speak; \
                           over HTTP it is 4318";
            return Err(message.into());
        }
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// Does not show the address, in which a password may be.
    #[error("--otlp-endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT, names no collector: {0}")]
    Collector(String),
    /// Does not show the value either.
    #[error("{name} is set, but {message}")]
    NotRead {
        name: &'static str,
        message: &'static str,
    },
    #[error("{name} is `{value}`, but {message}")]
    Variable {
        name: &'static str,
        value: String,
        message: &'static str,
    },
    #[error(
        "{name} is a list of name=value, with %XX for what is not ASCII's, but pair {nth} is none"
    )]
    Header { name: &'static str, nth: usize },
    #[error("spans cannot be exported: {0}")]
    Exporter(String),
    #[error("cannot start the thread that makes spans: {0}")]
    Thread(std::io::Error),
}

/// How many spans there were, and how many a collector has taken. The rest waits
/// or is lost.
#[derive(Debug)]
pub(super) struct SpanCounts {
    pub(super) ended: AtomicU64,
    pub(super) exported: AtomicU64,
}

/// The process has one exporter.
pub(super) static SPANS: SpanCounts = SpanCounts {
    ended: AtomicU64::new(0),
    exported: AtomicU64::new(0),
};

/// Makes what exports spans, from a thread of its own, in batches. Unless
/// variables say otherwise, 512 are exported at once and 2,048 wait; more are lost.
pub(super) fn provider(
    collector: &Collector,
    environment: &Environment,
) -> Result<SdkTracerProvider, TracesError> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(environment.timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .build();
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(Client(agent.into()))
        .with_endpoint(collector.traces_url())
        .build()
        .map_err(|error| TracesError::Exporter(error.to_string()))?;
    let exporter = Reporting {
        exporter,
        collector: collector.clone(),
        failing: AtomicBool::new(false),
    };
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource())
        .build())
}

/// Who we are, as `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` have it.
fn resource() -> Resource {
    let resource = Resource::builder().build();
    let name = resource.get(&Key::from_static_str("service.name"));
    let builder = match name {
        Some(name) if !name.as_str().starts_with("unknown_service") => Resource::builder(),
        _ => Resource::builder().with_service_name("sluice"),
    };
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    builder.with_attribute(version).build()
}

/// The client that also fetches models. It blocks, and may: who calls it has a
/// thread for nothing else.
#[derive(Debug)]
struct Client(ureq::Agent);

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let response = self.0.run(Request::from_parts(head, &body[..]))?;
        let (head, mut body) = response.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

/// Says once that a collector takes nothing, and once that it does again.
#[derive(Debug)]
struct Reporting {
    exporter: opentelemetry_otlp::SpanExporter,
    collector: Collector,
    failing: AtomicBool,
}

impl SpanExporter for Reporting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let n_spans = batch.len() as u64;
        let exported = self.exporter.export(batch).await;
        let collector = &self.collector;
        match &exported {
            Ok(()) => {
                SPANS.exported.fetch_add(n_spans, Relaxed);
                if self.failing.swap(false, Relaxed) {
                    tracing::info!("the collector {collector} takes spans again");
                }
            }
            Err(error) => {
                if !self.failing.swap(true, Relaxed) {
                    tracing::warn!(
                        "the collector {collector} takes no spans, which are lost until it does: \
                         {error}"
                    );
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_an_address_without_the_path_of_traces() {
        for (text, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("https://otel.example/a", "https://otel.example/a/v1/traces"),
        ] {
            assert_eq!(text.parse::<Collector>().unwrap().traces_url(), url);
        }
        for (text, why) in [
            ("", "empty"),
            ("localhost:4318", "neither http"),
            ("ftp://a", "neither http"),
            ("http:///v1", ""),
            ("http://a b", ""),
            ("http://a:99999", ""),
            ("http://a?b=c", "query"),
            ("http://user:hush@a:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("https://hush@a", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("http://a:4317", "gRPC"),
        ] {
            let error = text.parse::<Collector>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
