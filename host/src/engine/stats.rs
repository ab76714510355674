//! What the engine has done and is doing, counted where others can read it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::histogram::Histogram;

/// What the engine has done and is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences that wait for a place in it.
    pub waiting: usize,
    pub steps: u64,
    /// Sequences that had to make room and were computed again.
    pub preempted: u64,
    /// Tokens of the KV cache that running sequences claim, and those kept for
    /// prompts to come.
    pub claimed_tokens: usize,
    pub kept_tokens: usize,
    /// Rows computed, prefill and decode.
    pub rows: u64,
    /// Wall time of all steps.
    pub step: Duration,
    /// Wall time of all forward passes.
    pub forward: Duration,
    /// What plans added to that: those made before the forward pass, and those
    /// that outlasted it.
    pub plan: Duration,
    /// What the chains added to that: those plans, edits, logits processors and
    /// samplers.
    pub chain: Duration,
}

/// What one step computed, and the time it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFigures {
    /// Steps before it.
    pub index: u64,
    pub started: Instant,
    /// Sequences in the batch.
    pub running: usize,
    /// Rows of prompts, and of what is computed again.
    pub prompt_rows: usize,
    /// Rows of newest tokens and of drafts.
    pub decode_rows: usize,
    /// All of it, until the tokens were chosen.
    pub step: Duration,
    pub phases: Phases,
    /// The marks of the marked sequences in it; see
    /// [`Handle::submit_marked`](super::Handle::submit_marked).
    pub marks: Vec<u64>,
}

/// Parts of a step, none within another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// The forward pass.
    pub forward: Duration,
    /// Plans before the forward pass, and waiting for them after it.
    pub plan: Duration,
    /// Edits and logits processors, logprobs too.
    pub chain: Duration,
    /// Samplers. Rows are worked on side by side: it is their share of that
    /// work, applied to the time that it took.
    pub sample: Duration,
}

/// How the steps were, one by one.
#[derive(Debug)]
pub struct StepHistograms {
    /// In nanoseconds, as all times here.
    pub step: Histogram,
    pub forward: Histogram,
    pub plan: Histogram,
    pub chain: Histogram,
    pub sample: Histogram,
    /// From submission to the first place in the batch.
    pub queue: Histogram,
    /// Sequences of a step.
    pub running: Histogram,
    /// Rows of a step.
    pub prompt_rows: Histogram,
    pub decode_rows: Histogram,
}

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// From what plugins take of a quick step to what a chunk of a prompt takes of
/// a large model on few processors.
const STEP_TIMES: [u64; 16] = [
    10 * MICROSECOND,
    30 * MICROSECOND,
    100 * MICROSECOND,
    300 * MICROSECOND,
    MILLISECOND,
    2 * MILLISECOND,
    5 * MILLISECOND,
    10 * MILLISECOND,
    20 * MILLISECOND,
    50 * MILLISECOND,
    100 * MILLISECOND,
    200 * MILLISECOND,
    500 * MILLISECOND,
    SECOND,
    5 * SECOND,
    30 * SECOND,
];

const QUEUE_TIMES: [u64; 11] = [
    MILLISECOND,
    5 * MILLISECOND,
    20 * MILLISECOND,
    100 * MILLISECOND,
    500 * MILLISECOND,
    SECOND,
    2 * SECOND,
    5 * SECOND,
    20 * SECOND,
    60 * SECOND,
    300 * SECOND,
];

const ROWS: [u64; 14] = [0, 1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024];

impl Default for StepHistograms {
    fn default() -> Self {
        let times = || Histogram::new(&STEP_TIMES);
        Self {
            step: times(),
            forward: times(),
            plan: times(),
            chain: times(),
            sample: times(),
            queue: Histogram::new(&QUEUE_TIMES),
            running: Histogram::new(&ROWS),
            prompt_rows: Histogram::new(&ROWS),
            decode_rows: Histogram::new(&ROWS),
        }
    }
}

/// When the engine's thread began its present round of work.
struct Progress {
    epoch: Instant,
    /// Nanoseconds since then; 0 while it rests.
    began_ns: AtomicU64,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            began_ns: AtomicU64::new(0),
        }
    }
}

/// Who is told of each step, on the engine's own thread.
pub(super) type Observer = Box<dyn Fn(StepFigures) + Send + Sync>;

/// What the engine's thread writes and others read.
#[derive(Default)]
pub(super) struct Counters {
    stopped: AtomicBool,
    progress: Progress,
    pub(super) queued: AtomicUsize,
    running: AtomicUsize,
    claimed_tokens: AtomicUsize,
    kept_tokens: AtomicUsize,
    steps: AtomicU64,
    preempted: AtomicU64,
    rows: AtomicU64,
    step_ns: AtomicU64,
    forward_ns: AtomicU64,
    plan_ns: AtomicU64,
    chain_ns: AtomicU64,
    pub(super) histograms: StepHistograms,
    pub(super) observer: OnceLock<Observer>,
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl Counters {
    /// Counts a step that computed rows.
    pub(super) fn step(&self, figures: StepFigures) {
        let rows = figures.prompt_rows + figures.decode_rows;
        self.steps.fetch_add(1, Relaxed);
        self.rows.fetch_add(rows as u64, Relaxed);
        let histograms = &self.histograms;
        histograms.step.observe(nanoseconds(figures.step));
        histograms.running.observe(figures.running as u64);
        histograms.prompt_rows.observe(figures.prompt_rows as u64);
        histograms.decode_rows.observe(figures.decode_rows as u64);
        let phases = figures.phases;
        histograms.forward.observe(nanoseconds(phases.forward));
        histograms.plan.observe(nanoseconds(phases.plan));
        histograms.chain.observe(nanoseconds(phases.chain));
        histograms.sample.observe(nanoseconds(phases.sample));
        self.step_ns.fetch_add(nanoseconds(figures.step), Relaxed);
        self.phases(phases);
        if let Some(observer) = self.observer.get() {
            observer(figures);
        }
    }

    /// Adds to the times of all steps; those of a step without rows too, in
    /// which late plans were chosen from.
    pub(super) fn phases(&self, phases: Phases) {
        let chain = phases.plan + phases.chain + phases.sample;
        self.forward_ns
            .fetch_add(nanoseconds(phases.forward), Relaxed);
        self.plan_ns.fetch_add(nanoseconds(phases.plan), Relaxed);
        self.chain_ns.fetch_add(nanoseconds(chain), Relaxed);
    }

    /// Steps that computed rows, until now.
    pub(super) fn n_steps(&self) -> u64 {
        self.steps.load(Relaxed)
    }

    pub(super) fn running(&self, running: usize) {
        self.running.store(running, Relaxed);
    }

    /// Notes how much of the KV cache is in use.
    pub(super) fn cache(&self, claimed_tokens: usize, kept_tokens: usize) {
        self.claimed_tokens.store(claimed_tokens, Relaxed);
        self.kept_tokens.store(kept_tokens, Relaxed);
    }

    /// Counts sequences that went back to the waiting queue.
    pub(super) fn preempted(&self, count: usize) {
        self.preempted.fetch_add(count as u64, Relaxed);
        self.queued.fetch_add(count, Relaxed);
    }

    /// Counts sequences that left the waiting queue.
    pub(super) fn dequeued(&self, count: usize) {
        self.queued.fetch_sub(count, Relaxed);
    }

    /// Counts a sequence that has its first place in the batch.
    pub(super) fn waited(&self, time: Duration) {
        self.histograms.queue.observe(nanoseconds(time));
    }

    /// A round of work begins.
    pub(super) fn begin(&self) {
        let now = nanoseconds(self.progress.epoch.elapsed());
        self.progress.began_ns.store(now.max(1), Relaxed);
    }

    /// There is no work.
    pub(super) fn rest(&self) {
        self.progress.began_ns.store(0, Relaxed);
    }

    /// How long the present round has been going on.
    pub(super) fn stalled(&self) -> Duration {
        match self.progress.began_ns.load(Relaxed) {
            0 => Duration::ZERO,
            began => {
                let elapsed = self.progress.epoch.elapsed();
                elapsed.saturating_sub(Duration::from_nanos(began))
            }
        }
    }

    /// The engine is gone.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    pub(super) fn stats(&self) -> Stats {
        let time = |counter: &AtomicU64| Duration::from_nanos(counter.load(Relaxed));
        Stats {
            running: self.running.load(Relaxed),
            waiting: self.queued.load(Relaxed),
            steps: self.steps.load(Relaxed),
            preempted: self.preempted.load(Relaxed),
            claimed_tokens: self.claimed_tokens.load(Relaxed),
            kept_tokens: self.kept_tokens.load(Relaxed),
            rows: self.rows.load(Relaxed),
            step: time(&self.step_ns),
            forward: time(&self.forward_ns),
            plan: time(&self.plan_ns),
            chain: time(&self.chain_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_step_is_counted_once() {
        let [plan, forward, chain, sample, step] = [1, 20, 3, 4, 30].map(Duration::from_millis);
        let counters = Counters::default();
        for _ in 0..2 {
            counters.step(StepFigures {
                index: 0,
                started: Instant::now(),
                marks: Vec::new(),
                running: 2,
                prompt_rows: 5,
                decode_rows: 1,
                step,
                phases: Phases {
                    forward,
                    plan,
                    chain,
                    sample,
                },
            });
        }
        let stats = counters.stats();
        assert_eq!((stats.steps, stats.rows), (2, 12));
        assert_eq!((stats.step, stats.forward), (step * 2, forward * 2));
        assert_eq!(stats.plan, plan * 2);
        // All that stages added: 1 + 3 + 4 ms.
        assert_eq!(stats.chain, Duration::from_millis(16));
        let sum = |histogram: &Histogram| Duration::from_nanos(histogram.distribution().sum);
        assert_eq!(sum(&counters.histograms.forward), forward * 2);
        assert_eq!(sum(&counters.histograms.sample), sample * 2);
    }
}
