//! One step of the batch.

use super::{
    Chain, EngineConfig, Fault, FinishReason, Model, ModelError, ModelInfo, Phases, Row,
    StepFigures, planner::Turns, scheduler::Scheduler, sequence::Sequence, stats::Counters,
};
use sluice_kernels::row::LogitsRows;
use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Guest code may recurse; wasmtime needs far more than a thread's default
/// stack to turn that into a trap.
pub(super) const GUEST_STACK: usize = 8 << 20;

pub(super) struct Engine {
    model: Box<dyn Model>,
    pub(super) scheduler: Scheduler,
    closer: Closer,
    turns: Arc<Turns>,
    counters: Arc<Counters>,
    /// Ids from here up are padding.
    tokenizer_size: usize,
    rows: Vec<Row>,
    /// What this step has taken until now.
    phases: Phases,
}

impl Engine {
    pub(super) fn new(
        config: &EngineConfig,
        model: Box<dyn Model>,
        info: &ModelInfo,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        Ok(Self {
            scheduler: Scheduler::new(config, model.bytes_per_position()),
            model,
            closer: Closer::start()?,
            turns: Arc::new(Turns::new()),
            counters,
            tokenizer_size: info.tokenizer_size as usize,
            rows: Vec::new(),
            phases: Phases::default(),
        })
    }

    /// Schedules rows, computes them, chooses tokens and commits them.
    pub(super) fn step(&mut self) -> Result<(), ModelError> {
        let started = Instant::now();
        self.cancel_abandoned();
        let waiting = self.scheduler.waiting();
        self.scheduler.admit(|time| self.counters.waited(time));
        self.counters.dequeued(waiting - self.scheduler.waiting());
        let preempted = self.scheduler.make_room(&mut *self.model);
        self.counters.preempted(preempted);
        self.counters.running(self.scheduler.running());
        let prompt_rows = self.scheduler.schedule(&mut self.rows, &mut *self.model);
        self.take_late_plans();
        if !self.rows.is_empty() {
            self.compute()?;
        }
        self.choose();
        self.count(started, prompt_rows);
        self.commit();
        Ok(())
    }

    /// Counts what the step has done and taken.
    fn count(&mut self, started: Instant, prompt_rows: usize) {
        let phases = std::mem::take(&mut self.phases);
        if self.rows.is_empty() {
            return self.counters.phases(phases);
        }
        let sequences = self.scheduler.sequences().iter();
        let computed = sequences.filter(|sequence| sequence.scheduled().next().is_some());
        self.counters.step(StepFigures {
            index: self.counters.n_steps(),
            started,
            marks: computed.filter_map(|sequence| sequence.mark).collect(),
            running: self.scheduler.running(),
            prompt_rows,
            decode_rows: self.rows.len() - prompt_rows,
            step: started.elapsed(),
            phases,
        });
    }

    /// Whether the last step had nothing to compute: all that runs has a late
    /// plan.
    pub(super) fn only_waits(&self) -> bool {
        self.rows.is_empty()
    }

    /// Plans that earlier steps did not wait for.
    fn take_late_plans(&mut self) {
        for sequence in self.scheduler.sequences() {
            sequence.take_plan();
        }
    }

    fn cancel_abandoned(&mut self) {
        for sequence in self.scheduler.take_abandoned() {
            self.counters.dequeued(1);
            self.close(sequence);
        }
        for sequence in self.scheduler.sequences() {
            if sequence.is_abandoned() {
                sequence.finish(FinishReason::Cancelled);
            }
        }
        self.retire();
    }

    /// Runs the forward pass here, and the token processors of all rows that
    /// will be sampled: on threads of their own if they may be late, else
    /// beside it, on the threads that do a part of it.
    fn compute(&mut self) -> Result<(), ModelError> {
        let (model, rows) = (&mut self.model, &self.rows);
        let sequences = self.scheduler.sequences();
        let asked = Instant::now();
        let mut on_time = Vec::new();
        for sequence in sequences.iter_mut().filter(|s| s.samples()) {
            if sequence.may_be_late() {
                sequence.start_plan(&self.turns);
            } else {
                on_time.push((sequence.plans_with(), Mutex::new(sequence)));
            }
        }
        // The choices of a request share instances: one thread plans for all of them,
        // and no other waits for it meanwhile.
        on_time.sort_by_key(|(request, _)| *request);
        let requests: Vec<_> = on_time.chunk_by(|(a, _), (b, _)| a == b).collect();
        let n_threads = sluice_kernels::pool::n_threads();
        let plan = |index: usize| {
            let began = Instant::now();
            let mut waited = Duration::ZERO;
            // As many requests of their own would take so many rounds.
            let rounds = requests[index].len().div_ceil(n_threads) as u32;
            for (_, sequence) in requests[index] {
                if let Ok(mut sequence) = sequence.lock() {
                    guarded(&mut sequence, |sequence| sequence.plan(waited));
                }
                waited = began.elapsed() / rounds;
            }
        };
        let forward = || {
            let started = Instant::now();
            let computed = model.forward(rows);
            (computed, started, Instant::now())
        };
        let (computed, started, ended) =
            sluice_kernels::pool::beside(requests.len(), plan, forward);
        drop(on_time);
        for sequence in sequences.iter_mut().filter(|s| s.samples()) {
            sequence.take_plan();
        }
        self.phases.plan = (started - asked) + ended.elapsed();
        self.phases.forward = ended - started;
        computed
    }

    /// Hands every sequence its logits rows, from which chains choose; those
    /// whose late plan has come have kept theirs.
    fn choose(&mut self) {
        let started = Instant::now();
        let tokenizer_size = self.tokenizer_size;
        let mut logits = match self.rows[..] {
            [] => LogitsRows::default(),
            _ => self.model.logits().rows(),
        };
        let mut readers = Vec::new();
        for sequence in self.scheduler.sequences() {
            let rows = logits.take_rows(sequence.n_rows());
            if !rows.is_empty() && sequence.reads_rows() || sequence.has_caught_up() {
                readers.push(Mutex::new((sequence, rows)));
            }
        }
        // The threads of the forward pass still stand by: it takes others
        // longer to wake up than a row takes.
        sluice_kernels::pool::for_each(readers.len(), |index| {
            if let Ok(mut reader) = readers[index].lock() {
                let (sequence, rows) = &mut *reader;
                guarded(sequence, |s| s.read_rows(rows, tokenizer_size));
            }
        });
        let mut work = [Duration::ZERO; 2];
        for sequence in self.scheduler.sequences() {
            let times = sequence.take_row_times();
            work = [work[0] + times[0], work[1] + times[1]];
        }
        let time = started.elapsed();
        let share = work[1].as_secs_f64() / work[0].as_secs_f64().max(f64::MIN_POSITIVE);
        self.phases.sample = time.mul_f64(share.min(1.0));
        self.phases.chain = time.saturating_sub(self.phases.sample);
    }

    fn commit(&mut self) {
        for sequence in self.scheduler.sequences() {
            sequence.commit();
        }
        self.retire();
        self.counters.running(self.scheduler.running());
        let (claimed, kept) = (
            self.scheduler.claimed_tokens(),
            self.scheduler.kept_tokens(),
        );
        self.counters.cache(claimed, kept);
    }

    fn retire(&mut self) {
        for sequence in self.scheduler.retire(&mut *self.model) {
            self.close(sequence);
        }
    }

    /// Closes a sequence's stages.
    fn close(&self, sequence: Sequence) {
        if let Some(chain) = sequence.into_chain() {
            self.closer.close(chain);
        }
    }

    /// Ends everything, because the model is lost.
    pub(super) fn abort(&mut self, error: &ModelError) {
        self.counters.dequeued(self.scheduler.waiting());
        self.counters.running(0);
        for mut sequence in self.scheduler.drain() {
            sequence.finish(FinishReason::EngineError(error.to_string()));
        }
    }
}

/// A thread that closes the stages of sequences that have ended: freeing an instance
/// takes longer than the others should wait. Dropping this waits for all of it.
struct Closer {
    /// There until this is dropped.
    ended: Option<mpsc::Sender<Box<dyn Chain>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Closer {
    fn start() -> io::Result<Self> {
        let (ended, chains) = mpsc::channel::<Box<dyn Chain>>();
        let close = move || {
            for chain in chains {
                if catch_unwind(AssertUnwindSafe(|| drop(chain))).is_err() {
                    tracing::error!("closing a chain panicked; this is a defect of Sluice");
                }
            }
        };
        let thread = thread::Builder::new()
            .name("sluice-close".into())
            .spawn(close)?;
        Ok(Self {
            ended: Some(ended),
            thread: Some(thread),
        })
    }

    fn close(&self, chain: Box<dyn Chain>) {
        if let Some(ended) = &self.ended {
            let _ = ended.send(chain);
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.ended = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A panic on the way to a guest is a defect of ours, but still ends only the
/// sequence it happened in.
fn guarded(sequence: &mut Sequence, call: impl FnOnce(&mut Sequence)) {
    if catch_unwind(AssertUnwindSafe(|| call(sequence))).is_err() {
        sequence.fail(Fault {
            stage: "chain".into(),
            kind: "internal",
            message: "the server failed while running this chain; this is a defect of Sluice"
                .into(),
        });
    }
}
