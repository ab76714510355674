//! What is counted of requests, and where the other figures are.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::figures::Figures;
use crate::engine::{Handle, Histogram};
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

/// Counts and times requests.
pub struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    choices: Family<Ended, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    completion_tokens: Counter,
    latencies: Arc<Latencies>,
}

/// How long clients waited for tokens, in nanoseconds.
pub(super) struct Latencies {
    pub(super) first_token: Histogram,
    pub(super) next_token: Histogram,
}

/// What one choice took and gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub cached: usize,
    pub completion: usize,
}

/// As many bounds, in nanoseconds, as there are; each is twice the one before.
const fn doubling<const N: usize>(first: u64) -> [u64; N] {
    let mut bounds = [first; N];
    let mut i = 1;
    while i < N {
        bounds[i] = bounds[i - 1] * 2;
        i += 1;
    }
    bounds
}

/// 5 ms to 41 s, and 1 ms to 8 s.
const FIRST_TOKEN: [u64; 14] = doubling(5_000_000);
const NEXT_TOKEN: [u64; 14] = doubling(1_000_000);

impl Metrics {
    pub fn new(
        engine: Handle,
        runtime: Arc<plugin::Runtime>,
        plugins: Arc<plugin::Registry>,
    ) -> Self {
        let latencies = Arc::new(Latencies {
            first_token: Histogram::new(&FIRST_TOKEN),
            next_token: Histogram::new(&NEXT_TOKEN),
        });
        let figures = Figures {
            engine,
            runtime,
            plugins,
            latencies: latencies.clone(),
        };
        let metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            choices: Family::default(),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            completion_tokens: Counter::default(),
            latencies,
        };
        metrics.with_names(figures)
    }

    fn with_names(mut self, figures: Figures) -> Self {
        let names = &mut self.registry;
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
        let tokens = [
            (
                "sluice_prompt_tokens",
                "Tokens of prompts",
                &self.prompt_tokens,
            ),
            (
                "sluice_cached_tokens",
                "Of those, in the cache already",
                &self.cached_tokens,
            ),
            (
                "sluice_completion_tokens",
                "Tokens generated, in choices that were not cut short",
                &self.completion_tokens,
            ),
        ];
        for (name, help, counter) in tokens {
            names.register(name, help, counter.clone());
        }
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
        self.latencies.first_token.observe(after.as_nanos() as u64);
    }

    /// Further tokens of a choice are there, so long after the ones before.
    pub fn next_tokens(&self, n_tokens: usize, after: Duration) {
        let each = after.as_nanos() as u64 / n_tokens.max(1) as u64;
        self.latencies.next_token.observe_all(each, n_tokens as u64);
    }

    /// Counts a choice that ended with tokens.
    pub fn finished(&self, reason: &'static str, tokens: Tokens) {
        self.ended(reason);
        self.cached_tokens.inc_by(tokens.cached as u64);
        self.completion_tokens.inc_by(tokens.completion as u64);
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
