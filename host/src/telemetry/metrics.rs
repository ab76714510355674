//! Names and units of everything that Prometheus can ask for.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::engine::Handle;
use crate::plugin;

/// The media type of [`Metrics::exposition`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    route: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPlugin {
    plugin: String,
}

type Seconds = Counter<f64, AtomicU64>;

/// Counts and times requests, and knows where the other figures are.
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    choices: Family<Ended, Counter>,
    first_token: Histogram,
    next_token: Histogram,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    completion_tokens: Counter,
    plugin_calls: Family<OfPlugin, Counter>,
    plugin_edits: Family<OfPlugin, Counter>,
    plugin_time: Family<OfPlugin, Seconds>,
}

/// What one choice took and gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub cached: usize,
    pub completion: usize,
}

/// What one stage of a choice did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageFigures<'a> {
    pub plugin: &'a str,
    pub calls: u64,
    pub edits: u64,
    pub time: Duration,
}

impl Metrics {
    pub fn new(
        engine: Handle,
        runtime: Arc<plugin::Runtime>,
        plugins: Arc<plugin::Registry>,
    ) -> Self {
        let metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            choices: Family::default(),
            // From 5 ms to 40 s, and from 1 ms to 8 s.
            first_token: Histogram::new(exponential_buckets(0.005, 2.0, 14)),
            next_token: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            completion_tokens: Counter::default(),
            plugin_calls: Family::default(),
            plugin_edits: Family::default(),
            plugin_time: Family::default(),
        };
        let figures = Figures {
            engine,
            runtime,
            plugins,
        };
        metrics.with_names(figures)
    }

    fn with_names(mut self, figures: Figures) -> Self {
        let names = &mut self.registry;
        let mut counter = |name: &str, help: &str, counter: &Counter| {
            names.register(name, help, counter.clone());
        };
        counter(
            "sluice_prompt_tokens",
            "Tokens of prompts",
            &self.prompt_tokens,
        );
        counter(
            "sluice_cached_tokens",
            "Of those, in the cache already",
            &self.cached_tokens,
        );
        counter(
            "sluice_completion_tokens",
            "Tokens generated",
            &self.completion_tokens,
        );
        names.register(
            "sluice_requests",
            "Requests, by route and status; a stream that fails later has 200",
            self.requests.clone(),
        );
        names.register(
            "sluice_choices",
            "Generated choices, by finish reason or the code of their error",
            self.choices.clone(),
        );
        names.register(
            "sluice_time_to_first_token_seconds",
            "From the last byte of a request to its first token",
            self.first_token.clone(),
        );
        names.register(
            "sluice_inter_token_seconds",
            "From a token of a choice to its next",
            self.next_token.clone(),
        );
        names.register(
            "sluice_plugin_calls",
            "Positions at which stages were asked, by plugin",
            self.plugin_calls.clone(),
        );
        names.register(
            "sluice_plugin_edits",
            "Edits of stages, by plugin",
            self.plugin_edits.clone(),
        );
        names.register(
            "sluice_plugin_seconds",
            "Time in calls of stages and in applying their edits, by plugin",
            self.plugin_time.clone(),
        );
        names.register_collector(Box::new(figures));
        self
    }

    /// Counts a request that is answered.
    pub fn answered(&self, route: &str, status: u16) {
        let labels = Answered {
            route: route.to_owned(),
            code: status.to_string(),
        };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts the tokens of a request's prompts.
    pub fn prompted(&self, n_tokens: usize) {
        self.prompt_tokens.inc_by(n_tokens as u64);
    }

    /// The first token of a request is there.
    pub fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// Further tokens of a choice are there, so long after the ones before.
    pub fn next_tokens(&self, n_tokens: usize, after: Duration) {
        for _ in 0..n_tokens {
            self.next_token
                .observe(after.as_secs_f64() / n_tokens as f64);
        }
    }

    /// Counts a choice that ended with tokens.
    pub fn finished<'a>(
        &self,
        reason: &'static str,
        tokens: Tokens,
        stages: impl Iterator<Item = StageFigures<'a>>,
    ) {
        self.ended(reason);
        self.cached_tokens.inc_by(tokens.cached as u64);
        self.completion_tokens.inc_by(tokens.completion as u64);
        for stage in stages {
            let labels = OfPlugin {
                plugin: stage.plugin.to_owned(),
            };
            self.plugin_calls.get_or_create(&labels).inc_by(stage.calls);
            self.plugin_edits.get_or_create(&labels).inc_by(stage.edits);
            let seconds = stage.time.as_secs_f64();
            self.plugin_time.get_or_create(&labels).inc_by(seconds);
        }
    }

    /// Counts a choice that ended for this reason.
    pub fn ended(&self, reason: &'static str) {
        self.choices.get_or_create(&Ended { reason }).inc();
    }

    /// All figures, in the OpenMetrics text format.
    pub fn exposition(&self) -> String {
        let mut exposition = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut exposition, &self.registry);
        exposition
    }
}

/// What others count, read when it is asked for.
struct Figures {
    engine: Handle,
    runtime: Arc<plugin::Runtime>,
    plugins: Arc<plugin::Registry>,
}

impl fmt::Debug for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("Figures")
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let stats = self.engine.stats();
        let gauges = [
            (
                "sluice_sequences_running",
                "Sequences in the batch",
                stats.running,
            ),
            (
                "sluice_sequences_waiting",
                "Sequences that wait for it",
                stats.waiting,
            ),
            (
                "sluice_cache_claimed_tokens",
                "Tokens of the KV cache that running sequences claim",
                stats.claimed_tokens,
            ),
            (
                "sluice_cache_kept_tokens",
                "Tokens of the KV cache that are kept for prompts to come",
                stats.kept_tokens,
            ),
            (
                "sluice_plugin_memory_bytes",
                "Memory of all plugin instances",
                self.runtime.memory_bytes(),
            ),
        ];
        for (name, help, value) in gauges {
            put(&mut encoder, name, help, &ConstGauge::new(value as i64))?;
        }
        let counters = [
            ("sluice_steps", "Decode steps", stats.steps),
            ("sluice_rows", "Rows computed, prefill included", stats.rows),
            (
                "sluice_preemptions",
                "Sequences that made room in the KV cache and were computed again",
                stats.preempted,
            ),
        ];
        for (name, help, value) in counters {
            put(&mut encoder, name, help, &ConstCounter::new(value))?;
        }
        let times = [
            ("sluice_step_seconds", "Time of all steps", stats.step),
            (
                "sluice_forward_seconds",
                "Of that, forward passes",
                stats.forward,
            ),
            (
                "sluice_plan_seconds",
                "Of that, token processors before the forward pass, and waiting for them after it",
                stats.plan,
            ),
            (
                "sluice_chain_seconds",
                "Of that, added by stages, plans included",
                stats.chain,
            ),
        ];
        for (name, help, value) in times {
            let seconds = ConstCounter::new(value.as_secs_f64());
            put(&mut encoder, name, help, &seconds)?;
        }
        put(
            &mut encoder,
            "sluice_plugin_faults",
            "Faults, by plugin",
            &self.faults(),
        )
    }
}

/// Writes one metric.
fn put(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

impl Figures {
    fn faults(&self) -> Family<OfPlugin, Counter> {
        let faults = Family::<OfPlugin, Counter>::default();
        for plugin in self.plugins.list() {
            let labels = OfPlugin {
                plugin: plugin.name.clone(),
            };
            faults.get_or_create(&labels).inc_by(plugin.n_faults());
        }
        faults
    }
}
