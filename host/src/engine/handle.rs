//! Starting the engine's thread and talking to it.

use super::{
    EngineConfig, Model, ModelInfo, Submission,
    sequence::Sequence,
    stats::{Counters, Stats, StepFigures, StepHistograms},
    step::{Engine, GUEST_STACK},
};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
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

/// A sequence on its way to the engine.
struct Submitted {
    submission: Submission,
    mark: Option<u64>,
    at: Instant,
}

impl From<Submitted> for Sequence {
    fn from(submitted: Submitted) -> Self {
        let mut sequence = Self::new(submitted.submission);
        sequence.mark = submitted.mark;
        sequence.submitted = submitted.at;
        sequence
    }
}

/// A way to the engine, cheap to clone. When the last one is dropped the
/// engine finishes what it has and ends.
#[derive(Clone)]
pub struct Handle {
    submissions: mpsc::Sender<Submitted>,
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
        self.enqueue(submission, None)
    }

    /// The same for a sequence whose steps are wanted: the figures of each step
    /// that it is in have its mark.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_marked(&self, submission: Submission, mark: u64) -> Result<(), SubmitError> {
        self.enqueue(submission, Some(mark))
    }

    fn enqueue(&self, submission: Submission, mark: Option<u64>) -> Result<(), SubmitError> {
        self.validate(&submission)?;
        if self.counters.is_stopped() {
            return Err(SubmitError::Stopped);
        }
        let limit = self.max_waiting;
        self.counters
            .queued
            .fetch_update(Relaxed, Relaxed, |n| (n < limit).then_some(n + 1))
            .map_err(|_| SubmitError::Busy { limit })?;
        let submitted = Submitted {
            submission,
            mark,
            at: Instant::now(),
        };
        self.submissions.send(submitted).map_err(|_| {
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
        self.counters.stats()
    }

    /// How its steps were, one by one.
    pub fn histograms(&self) -> &StepHistograms {
        &self.counters.histograms
    }

    /// Has `observer` told of each step from now on, on the engine's own thread:
    /// it must not wait for anything. Only the first one is.
    pub fn observe_steps(&self, observer: impl Fn(StepFigures) + Send + Sync + 'static) {
        let _ = self.counters.observer.set(Box::new(observer));
    }

    /// Most tokens that the KV cache holds.
    pub fn kv_tokens(&self) -> usize {
        self.kv_tokens
    }

    /// Most sequences that wait.
    pub fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// How long the engine has been at one step; zero while it has no work. A
    /// watchdog's figure: it grows when a forward pass or a stage hangs.
    pub fn stalled(&self) -> Duration {
        self.counters.stalled()
    }

    /// Whether the engine still takes sequences.
    pub fn is_alive(&self) -> bool {
        !self.counters.is_stopped()
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
                    run(engine, &inbox, &counters);
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
        self.0.stop();
    }
}

fn run(mut engine: Engine, inbox: &mpsc::Receiver<Submitted>, counters: &Counters) {
    loop {
        if engine.scheduler.is_idle() {
            counters.rest();
            match inbox.recv() {
                Ok(submission) => engine.scheduler.push(submission.into()),
                Err(_) => return,
            }
        }
        counters.begin();
        while let Ok(submission) = inbox.try_recv() {
            engine.scheduler.push(submission.into());
        }
        if let Err(error) = engine.step() {
            tracing::error!(%error, "the model is lost");
            return engine.abort(&error);
        }
        if engine.only_waits() && !engine.scheduler.is_idle() {
            match inbox.recv_timeout(LATE_PLANS) {
                Ok(submission) => engine.scheduler.push(submission.into()),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => thread::sleep(LATE_PLANS),
            }
        }
    }
}
