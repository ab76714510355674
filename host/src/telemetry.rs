//! Names of metrics and spans, and how the log is set up: in one place.

mod figures;
mod log_format;
mod metrics;
mod otlp;
mod request;
mod steps;
mod traces;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

pub use log_format::LogFormat;
pub use metrics::{MEDIA_TYPE, Metrics, Tokens};
pub use otlp::TracesError;
pub use request::{Generation, RequestFacts};
pub use traces::{RequestSpan, Traces};

/// Writes the log to standard error. `RUST_LOG` chooses what; without it,
/// warnings, and what this crate has to say.
pub fn init(format: LogFormat) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,sluice=info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.event_format(log_format::Json).init(),
    }
}
