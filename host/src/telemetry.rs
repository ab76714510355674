//! Names of metrics, and how the log is set up: in one place.

mod metrics;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

pub use metrics::{MEDIA_TYPE, Metrics, StageFigures, Tokens};

/// Writes the log to standard error. `RUST_LOG` chooses what; without it,
/// warnings, and what this crate has to say.
pub fn init() {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,sluice=info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}
