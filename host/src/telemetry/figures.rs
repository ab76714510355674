//! What others count, read when somebody asks for it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::metrics::Latencies;
use super::otlp::SPANS;
use crate::engine::{Handle, Histogram};
use crate::plugin;

/// Where the figures are.
pub(super) struct Figures {
    pub(super) engine: Handle,
    pub(super) runtime: Arc<plugin::Runtime>,
    pub(super) plugins: Arc<plugin::Registry>,
    pub(super) latencies: Arc<Latencies>,
}

impl fmt::Debug for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("Figures")
    }
}

impl Collector for Figures {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut names = Names(encoder);
        self.requests(&mut names)?;
        self.engine(&mut names)?;
        self.steps(&mut names)?;
        spans(&mut names)?;
        self.plugins(&mut names)
    }
}

impl Figures {
    fn requests(&self, names: &mut Names) -> fmt::Result {
        names.metric(
            "sluice_time_to_first_token_seconds",
            "From the last byte of a request to its first token",
            &Seconds(&self.latencies.first_token),
        )?;
        names.metric(
            "sluice_inter_token_seconds",
            "From a token of a choice to its next",
            &Seconds(&self.latencies.next_token),
        )?;
        names.metric(
            "sluice_queue_seconds",
            "How long a sequence waited for its first place in the batch",
            &Seconds(&self.engine.histograms().queue),
        )
    }

    fn engine(&self, names: &mut Names) -> fmt::Result {
        let stats = self.engine.stats();
        let gauges = [
            (
                "sluice_sequences_running",
                "Sequences in the batch",
                stats.running,
            ),
            (
                "sluice_sequences_waiting",
                "Sequences that wait for a place in it",
                stats.waiting,
            ),
            (
                "sluice_sequences_waiting_limit",
                "The most that may wait; more get a 429",
                self.engine.max_waiting(),
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
                "sluice_cache_limit_tokens",
                "The most tokens that the KV cache holds",
                self.engine.kv_tokens(),
            ),
        ];
        for (name, help, value) in gauges {
            names.metric(name, help, &ConstGauge::new(value as i64))?;
        }
        names.metric(
            "sluice_preemptions",
            "Sequences that made room in the KV cache and were computed again",
            &ConstCounter::new(stats.preempted),
        )
    }

    fn steps(&self, names: &mut Names) -> fmt::Result {
        let steps = self.engine.histograms();
        names.metric(
            "sluice_step_seconds",
            "Steps of the batch, until their tokens were chosen",
            &Seconds(&steps.step),
        )?;
        let phases = [
            ("forward", Seconds(&steps.forward)),
            ("plan", Seconds(&steps.plan)),
            ("chain", Seconds(&steps.chain)),
            ("sample", Seconds(&steps.sample)),
        ];
        names.family(
            "sluice_step_phase_seconds",
            "Parts of steps: forward pass; waiting for plans; edits and logits processors; samplers",
            "phase",
            &phases,
        )?;
        names.metric(
            "sluice_batch_sequences",
            "Sequences in the batch, step by step",
            &Plain(&steps.running),
        )?;
        let rows = [
            ("decode", Plain(&steps.decode_rows)),
            ("prompt", Plain(&steps.prompt_rows)),
        ];
        names.family(
            "sluice_batch_rows",
            "Rows of a step: newest tokens and drafts, and tokens of prompts",
            "kind",
            &rows,
        )
    }

    fn plugins(&self, names: &mut Names) -> fmt::Result {
        names.metric(
            "sluice_instances_memory_bytes",
            "Linear memory of all instances, those of removed plugins included",
            &ConstGauge::new(self.runtime.memory_bytes() as i64),
        )?;
        names.metric(
            "sluice_instances_memory_limit_bytes",
            "The most that they may have",
            &ConstGauge::new(self.runtime.limits().total_memory_bytes as i64),
        )?;
        // The versions of a name are one, and what is removed is gone.
        let mut all = BTreeMap::<String, OfPlugin>::new();
        for plugin in self.plugins.list() {
            all.entry(plugin.name.clone()).or_default().add(&plugin);
        }
        macro_rules! family {
            ($name:literal, $help:literal, $kind:ident($field:ident)) => {{
                let metrics: Vec<_> = all
                    .iter()
                    .map(|(name, plugin)| (name.as_str(), $kind::new(plugin.$field)))
                    .collect();
                names.family($name, $help, "plugin", &metrics)?;
            }};
        }
        family!(
            "sluice_plugin_calls",
            "Positions at which stages were asked, in choices that have ended",
            ConstCounter(calls)
        );
        family!(
            "sluice_plugin_edits",
            "Edits of stages, in choices that have ended",
            ConstCounter(edits)
        );
        family!(
            "sluice_plugin_seconds",
            "Time in calls of stages and in applying their edits, in choices that have ended",
            ConstCounter(seconds)
        );
        family!("sluice_plugin_faults", "Faults", ConstCounter(faults));
        family!(
            "sluice_plugin_disabled",
            "Versions that failed too often and may not be used",
            ConstGauge(disabled)
        );
        family!(
            "sluice_plugin_memory_bytes",
            "Linear memory of the instances that there are",
            ConstGauge(memory_bytes)
        );
        Ok(())
    }
}

fn spans(names: &mut Names) -> fmt::Result {
    let states = [("ended", &SPANS.ended), ("exported", &SPANS.exported)];
    names.family(
        "sluice_spans",
        "Spans that ended, and those of them that a collector has taken; the rest waits or is lost",
        "state",
        &states.map(|(state, count)| (state, ConstCounter::new(count.load(Relaxed)))),
    )
}

/// What all versions of a plugin have done and have.
#[derive(Default)]
struct OfPlugin {
    calls: u64,
    edits: u64,
    seconds: f64,
    faults: u64,
    disabled: i64,
    memory_bytes: i64,
}

impl OfPlugin {
    fn add(&mut self, plugin: &plugin::Plugin) {
        // Of all of them, those that are gone included, or counters would fall.
        let work = plugin.work_of_name();
        self.calls = work.calls;
        self.edits = work.edits;
        self.seconds = work.time.as_secs_f64();
        self.faults = plugin.n_faults_of_name();
        self.disabled += i64::from(plugin.disabled().is_some());
        self.memory_bytes += plugin.memory_bytes() as i64;
    }
}

/// Writes metrics with their names.
struct Names<'a>(DescriptorEncoder<'a>);

impl Names<'_> {
    fn metric(&mut self, name: &str, help: &str, metric: &impl EncodeMetric) -> fmt::Result {
        let encoder = self
            .0
            .encode_descriptor(name, help, None, metric.metric_type())?;
        metric.encode(encoder)
    }

    /// The same metric for each value of a label; nothing where there is none.
    fn family<M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        metrics: &[(&str, M)],
    ) -> fmt::Result {
        let Some((_, first)) = metrics.first() else {
            return Ok(());
        };
        let mut encoder = self
            .0
            .encode_descriptor(name, help, None, first.metric_type())?;
        for (value, metric) in metrics {
            metric.encode(encoder.encode_family(&[(label, *value)])?)?;
        }
        Ok(())
    }
}

/// A histogram of nanoseconds, shown in seconds.
struct Seconds<'a>(&'a Histogram);

/// A histogram of counts.
struct Plain<'a>(&'a Histogram);

impl EncodeMetric for Seconds<'_> {
    fn encode(&self, encoder: MetricEncoder) -> fmt::Result {
        encode(self.0, 1e9, encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

impl EncodeMetric for Plain<'_> {
    fn encode(&self, encoder: MetricEncoder) -> fmt::Result {
        encode(self.0, 1.0, encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// `units` of the histogram are one of what is shown.
fn encode(histogram: &Histogram, units: f64, mut encoder: MetricEncoder) -> fmt::Result {
    let distribution = histogram.distribution();
    let bounds = histogram.bounds().iter().map(|&bound| bound as f64 / units);
    let bounds = bounds.chain(std::iter::once(f64::INFINITY));
    let buckets: Vec<_> = bounds.zip(distribution.counts.iter().copied()).collect();
    encoder.encode_histogram::<NoLabelSet>(
        distribution.sum as f64 / units,
        distribution.counts.iter().sum(),
        &buckets,
        None,
    )
}
