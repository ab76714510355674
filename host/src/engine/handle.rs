//! Starting the engine's thread and talking to it.

use super::{
    EngineConfig, Model, ModelInfo, Submission,
    sequence::Sequence,
    step::{Engine, GUEST_STACK},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How often late plans are looked for while there is nothing else to do.
const LATE_PLANS: Duration = Duration::from_millis(1);

/// Why a sequence was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The waiting queue is full.
    #[error("{limit} sequences are waiting already, the most this server queues")]
    Busy { limit: usize },
    /// The model is gone.
    #[error("the engine has stopped")]
    Stopped,
    /// It would break the engine. Callers refuse such requests earlier.
    #[error("{0}")]
    Invalid(String),
}

/// Why the engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError<E> {
    #[error(transparent)]
    Model(E),
    #[error("cannot start the engine's threads: {0}")]
    Threads(String),
}

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

impl Progress {
    fn begin(&self) {
        let now = self.epoch.elapsed().as_nanos() as u64;
        self.began_ns.store(now.max(1), Relaxed);
    }

    fn rest(&self) {
        self.began_ns.store(0, Relaxed);
    }

    /// How long the present round has been going on.
    fn stalled(&self) -> Duration {
        match self.began_ns.load(Relaxed) {
            0 => Duration::ZERO,
            began => self
                .epoch
                .elapsed()
                .saturating_sub(Duration::from_nanos(began)),
        }
    }
}

#[derive(Default)]
pub(super) struct Counters {
    stopped: AtomicBool,
    progress: Progress,
    queued: AtomicUsize,
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
}

fn add(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(time.as_nanos() as u64, Relaxed);
}

impl Counters {
    pub(super) fn step(&self, rows: usize, time: Duration) {
        self.steps.fetch_add(1, Relaxed);
        self.rows.fetch_add(rows as u64, Relaxed);
        add(&self.step_ns, time);
    }

    pub(super) fn forward(&self, forward: Duration, plans: Duration) {
        add(&self.forward_ns, forward);
        add(&self.plan_ns, plans);
        add(&self.chain_ns, plans);
    }

    pub(super) fn chosen(&self, time: Duration) {
        add(&self.chain_ns, time);
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
}

/// A way to the engine, cheap to clone. When the last one is dropped the
/// engine finishes what it has and ends.
#[derive(Clone)]
pub struct Handle {
    submissions: mpsc::Sender<Submission>,
    counters: Arc<Counters>,
    max_waiting: usize,
    kv_tokens: usize,
    info: Arc<ModelInfo>,
}

impl Handle {
    /// Facts about the loaded model.
    pub fn model_info(&self) -> &ModelInfo {
        &self.info
    }

    /// Hands a sequence to the engine. Its events say the rest.
    ///
    /// # Errors
    /// When the queue is full, the engine has stopped, or the submission
    /// breaks [`Submission`]'s terms.
    pub fn submit(&self, submission: Submission) -> Result<(), SubmitError> {
        self.validate(&submission)?;
        if self.counters.stopped.load(Relaxed) {
            return Err(SubmitError::Stopped);
        }
        let limit = self.max_waiting;
        self.counters
            .queued
            .fetch_update(Relaxed, Relaxed, |n| (n < limit).then_some(n + 1))
            .map_err(|_| SubmitError::Busy { limit })?;
        self.submissions.send(submission).map_err(|_| {
            self.counters.dequeued(1);
            SubmitError::Stopped
        })
    }

    fn validate(&self, submission: &Submission) -> Result<(), SubmitError> {
        let invalid = |message: String| Err(SubmitError::Invalid(message));
        let width = self.info.vocabulary_size;
        let total = submission.prompt.len() as u64 + u64::from(submission.max_tokens);
        let most = u64::from(self.info.context_length).min(self.kv_tokens as u64);
        if submission.prompt.is_empty() {
            invalid("the prompt has no tokens".into())
        } else if total > most {
            invalid(format!(
                "prompt and completion of {total} tokens exceed {most}"
            ))
        } else if let Some(id) = submission.prompt.iter().find(|&&id| id >= width) {
            invalid(format!(
                "token id {id} is not below the vocabulary size {width}"
            ))
        } else {
            Ok(())
        }
    }

    /// A snapshot of what the engine is doing.
    pub fn stats(&self) -> Stats {
        let c = &self.counters;
        let time = |counter: &AtomicU64| Duration::from_nanos(counter.load(Relaxed));
        Stats {
            running: c.running.load(Relaxed),
            waiting: c.queued.load(Relaxed),
            steps: c.steps.load(Relaxed),
            preempted: c.preempted.load(Relaxed),
            claimed_tokens: c.claimed_tokens.load(Relaxed),
            kept_tokens: c.kept_tokens.load(Relaxed),
            rows: c.rows.load(Relaxed),
            step: time(&c.step_ns),
            forward: time(&c.forward_ns),
            plan: time(&c.plan_ns),
            chain: time(&c.chain_ns),
        }
    }

    /// How long the engine has been at one step; zero while it has no work. A
    /// watchdog's figure: it grows when a forward pass or a stage hangs.
    pub fn stalled(&self) -> Duration {
        self.counters.progress.stalled()
    }

    /// Whether the engine still takes sequences.
    pub fn is_alive(&self) -> bool {
        !self.counters.stopped.load(Relaxed)
    }
}

/// Starts the engine's thread, on which `build` makes the model, and waits
/// until that is done.
///
/// # Errors
/// When `build` fails or a thread cannot be started.
pub fn spawn<E: Send + 'static>(
    config: EngineConfig,
    info: ModelInfo,
    build: impl FnOnce() -> Result<Box<dyn Model>, E> + Send + 'static,
) -> Result<(Handle, JoinHandle<()>), SpawnError<E>> {
    let (submissions, inbox) = mpsc::channel();
    let (report, ready) = mpsc::sync_channel(1);
    let counters = Arc::new(Counters::default());
    let info = Arc::new(info);
    let handle = Handle {
        submissions,
        counters: counters.clone(),
        max_waiting: config.max_waiting,
        kv_tokens: config.kv_tokens,
        info: info.clone(),
    };
    let thread = thread::Builder::new()
        .name("sluice-engine".into())
        .stack_size(GUEST_STACK)
        .spawn(move || {
            let _stopped = MarkStopped(counters.clone());
            let started = build().map_err(SpawnError::Model).and_then(|model| {
                Engine::new(&config, model, &info, counters.clone())
                    .map_err(|e| SpawnError::Threads(e.to_string()))
            });
            match started {
                Ok(engine) => {
                    let _ = report.send(Ok(()));
                    run(engine, &inbox, &counters.progress);
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            }
        })
        .map_err(|e| SpawnError::Threads(e.to_string()))?;
    match ready.recv() {
        Ok(Ok(())) => Ok((handle, thread)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(SpawnError::Threads("the engine's thread panicked".into())),
    }
}

/// Says that the engine is gone, also when its thread panics.
struct MarkStopped(Arc<Counters>);

impl Drop for MarkStopped {
    fn drop(&mut self) {
        self.0.stopped.store(true, Relaxed);
    }
}

fn run(mut engine: Engine, inbox: &mpsc::Receiver<Submission>, progress: &Progress) {
    loop {
        if engine.scheduler.is_idle() {
            progress.rest();
            match inbox.recv() {
                Ok(submission) => engine.scheduler.push(Sequence::new(submission)),
                Err(_) => return,
            }
        }
        progress.begin();
        while let Ok(submission) = inbox.try_recv() {
            engine.scheduler.push(Sequence::new(submission));
        }
        if let Err(error) = engine.step() {
            tracing::error!(%error, "the model is lost");
            return engine.abort(&error);
        }
        if engine.only_waits() && !engine.scheduler.is_idle() {
            match inbox.recv_timeout(LATE_PLANS) {
                Ok(submission) => engine.scheduler.push(Sequence::new(submission)),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => thread::sleep(LATE_PLANS),
            }
        }
    }
}
