//! Names of metrics, and how the log is set up: in one place.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use crate::engine::Stats;

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

/// The engine's figures in Prometheus' text format.
pub fn exposition(stats: &Stats) -> String {
    let seconds = |time: Duration| time.as_secs_f64();
    let metrics = [
        (
            "sluice_sequences_running",
            "gauge",
            "Sequences in the batch.",
            stats.running as f64,
        ),
        (
            "sluice_sequences_waiting",
            "gauge",
            "Sequences that wait for it.",
            stats.waiting as f64,
        ),
        (
            "sluice_steps_total",
            "counter",
            "Decode steps.",
            stats.steps as f64,
        ),
        (
            "sluice_preemptions_total",
            "counter",
            "Sequences that made room in the KV cache and were computed again.",
            stats.preempted as f64,
        ),
        (
            "sluice_rows_total",
            "counter",
            "Rows computed, prefill included.",
            stats.rows as f64,
        ),
        (
            "sluice_step_seconds_total",
            "counter",
            "Time of all steps.",
            seconds(stats.step),
        ),
        (
            "sluice_forward_seconds_total",
            "counter",
            "Of that, forward passes.",
            seconds(stats.forward),
        ),
        (
            "sluice_chain_seconds_total",
            "counter",
            "Of that, added by stages.",
            seconds(stats.chain),
        ),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in metrics {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_in_prometheus_text_format() {
        let stats = Stats {
            running: 2,
            steps: 7,
            step: Duration::from_millis(1500),
            ..Stats::default()
        };
        let text = exposition(&stats);
        assert!(text.starts_with(
            "# HELP sluice_sequences_running Sequences in the batch.\n\
             # TYPE sluice_sequences_running gauge\n\
             sluice_sequences_running 2\n"
        ));
        assert!(text.contains("\nsluice_steps_total 7\n"));
        assert!(text.contains("\nsluice_step_seconds_total 1.5\n"));
    }
}
