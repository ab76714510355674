//! One open stage of a sequence: an instance of its plugin, and what it was told
//! and did.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use wasmtime::component::ResourceAny;

use super::crossed::Crossed;
use super::deadline::Deadline;
use super::edits::{Edits, apply, raise_banned};
use super::fault::{fault, kind};
use super::instance::Instance;
use super::loaded::Kind;
use super::open::Source;
use super::pool::Place;
use super::record::LogLine;
use super::report::{Did, Effect};
use super::stages::OnFault;
use crate::engine::{Fault, LogitsRow, TokenId};
use sluice_contract::chance::{Chance, lane};
use sluice_contract::phase::Decision;
use sluice_kernels::row::{self, Scanned};

/// Faults of one stage that a request can have skipped.
const MAX_SKIPS: u32 = 3;

/// One open stage of one sequence.
pub(super) struct Stage {
    pub(super) source: Arc<Source>,
    pub(super) lane: u32,
    /// Shared by the choices of the request, unless its faults are skipped;
    /// none where it could not be opened anew.
    instance: Option<Arc<Mutex<Instance>>>,
    sequence: ResourceAny,
    /// The instance's, kept for the next one.
    place: Place,
    /// Taken by the chain after each call.
    waited: Duration,
    /// Accepted tokens that the stage has not been told of.
    pub(super) pending: Vec<TokenId>,
    /// Made at this position.
    pub(super) edits: Edits,
    /// Said at this position.
    pub(super) log: Vec<LogLine>,
    n_skips: u32,
    /// It failed and has to be opened anew.
    pub(super) is_stale: bool,
    /// Over the boundary in all its calls.
    pub(super) crossed: Crossed,
    /// The row that it returned at this position, where that is explained.
    pub(super) returned: Option<Vec<f32>>,
}

impl Stage {
    pub(super) fn new(
        source: Arc<Source>,
        instance: Arc<Mutex<Instance>>,
        sequence: ResourceAny,
        place: Place,
    ) -> Self {
        let lane = match source.plugin.kind {
            Kind::Sampler => 0,
            _ => lane(&source.name),
        };
        Self {
            source,
            lane,
            instance: Some(instance),
            sequence,
            place,
            waited: Duration::ZERO,
            pending: Vec::new(),
            edits: Edits::default(),
            log: Vec::new(),
            n_skips: 0,
            is_stale: false,
            crossed: Crossed::default(),
            returned: None,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.source.plugin.kind
    }

    /// How long it has waited for other choices' calls of the instance since that
    /// was taken.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    pub(super) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Calls the instance, and takes what it says. The choices of a request share
    /// it and do not pay for each other: the deadline stands still while another
    /// has it. Where the batch waits for them they wait no longer than their limit,
    /// though: many processors would wait for one instance.
    fn call<T>(
        &mut self,
        deadline: Deadline,
        call: impl FnOnce(&mut Instance, &mut Self, Deadline) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let shared = self.instance.clone();
        let shared = shared.ok_or_else(|| self.fault(kind::ENDED, "its instance is gone"))?;
        let asked = Instant::now();
        let mut instance = lock(&shared, &self.source.name)?;
        let waited = asked.elapsed();
        self.waited += waited;
        let deadline = deadline.after_waiting(waited);
        self.check_waited(deadline)?;
        let result = call(&mut instance, self, deadline);
        self.crossed.add(instance.crossed());
        for line in instance.take_log() {
            self.source.plugin.record.write(line.clone());
            self.log.push(line);
        }
        if result.is_ok() {
            self.pending.clear();
        }
        result
    }

    /// Refuses what others have kept waiting for longer than its limit, if the batch
    /// waits too.
    fn check_waited(&self, deadline: Deadline) -> Result<(), Fault> {
        if !deadline.has_waited_too_long() || self.source.on_fault == OnFault::Wait {
            return Ok(());
        }
        let message = format!(
            "the other choices of the request kept it waiting for longer than the limit of {:?}",
            deadline.limit()
        );
        Err(self.fault(kind::LATE, message))
    }

    pub(super) fn plan(&mut self, deadline: Deadline) -> Result<Option<Decision>, Fault> {
        self.call(deadline, |instance, stage, deadline| {
            instance.plan(stage.sequence, &stage.pending, deadline, &mut stage.edits)
        })
    }

    /// Opens the stage anew, to be told of all `tokens`.
    pub(super) fn reopen(&mut self, tokens: &[TokenId], deadline: Deadline) -> Result<(), Fault> {
        self.check_waited(deadline)?;
        self.instance = None;
        let (instance, sequence) = self.source.reopen(&self.place, deadline)?;
        self.instance = Some(Arc::new(Mutex::new(instance)));
        self.sequence = sequence;
        self.pending = tokens.to_vec();
        self.is_stale = false;
        Ok(())
    }

    /// Whether this fault may be skipped; if so, the stage has no part in this
    /// position.
    pub(super) fn skips(&mut self) -> bool {
        if self.source.on_fault != OnFault::Skip || self.n_skips == MAX_SKIPS {
            return false;
        }
        self.n_skips += 1;
        self.is_stale = true;
        self.edits.clear();
        true
    }

    /// The fault that ended the sequence, with those before it.
    pub(super) fn after_skips(&self, mut fault: Fault) -> Fault {
        if self.n_skips > 0 {
            fault.message = format!(
                "{}; {} faults before it were skipped, the most there may be",
                fault.message, self.n_skips
            );
        }
        fault
    }

    pub(super) fn process(
        &mut self,
        row: Scanned<'_>,
        chance: Chance,
        deadline: Deadline,
    ) -> Result<Option<Vec<f32>>, Fault> {
        self.call(deadline, |instance, stage, deadline| {
            let (sequence, pending) = (stage.sequence, &stage.pending);
            instance.process(sequence, pending, row, chance, deadline, &mut stage.edits)
        })
    }

    pub(super) fn sample(
        &mut self,
        row: Scanned<'_>,
        chance: Chance,
        deadline: Deadline,
    ) -> Result<TokenId, Fault> {
        self.call(deadline, |instance, stage, deadline| {
            instance.sample(stage.sequence, &stage.pending, row, chance, deadline)
        })
    }

    pub(super) fn fault(&self, kind: &'static str, message: impl Into<String>) -> Fault {
        fault(&self.source.name, kind, message)
    }

    pub(super) fn effect(&mut self, did: Did) -> Effect {
        Effect {
            stage: self.source.name.clone(),
            did,
            log: std::mem::take(&mut self.log),
        }
    }

    pub(super) fn apply_edits(
        &self,
        row: &mut LogitsRow<'_>,
        bits: &mut [u32],
    ) -> Result<(), Fault> {
        apply(&self.edits, row, bits)
            .map_err(|overflow| self.fault(kind::INVALID_EDIT, overflow.to_string()))
    }

    /// Puts the row that `process` returned in the place of the old one. What
    /// was banned stays banned.
    pub(super) fn replace(&self, row: &mut LogitsRow<'_>, new_row: &[f32]) -> Result<(), Fault> {
        if !self.edits.is_empty() {
            return Err(self.fault(
                kind::INVALID_EDIT,
                "`process` made edits and returned a row; it may do one of them",
            ));
        }
        let n_logits = row.values().len();
        if new_row.len() != n_logits {
            return Err(self.fault(
                kind::INVALID_ROW,
                format!(
                    "`process` returned a row of {} values, the vocabulary has {}",
                    new_row.len(),
                    n_logits
                ),
            ));
        }
        if let Err(bad) = row::check(new_row) {
            let message = format!("`process` returned {} for the token {}", bad.value, bad.id);
            return Err(self.fault(kind::INVALID_ROW, message));
        }
        row.change(|row| {
            for (logit, &new) in row.iter_mut().zip(new_row) {
                if *logit > f32::NEG_INFINITY {
                    *logit = new;
                }
            }
        });
        Ok(())
    }

    /// Tokens that are banned in `row` and that it would raise if it could.
    pub(super) fn raises_banned(&self, row: &[f32]) -> Vec<TokenId> {
        let Some(new_row) = &self.returned else {
            return raise_banned(&self.edits, row);
        };
        let pairs = (0..).zip(row.iter().zip(new_row));
        pairs
            .filter(|(_, (old, new))| **old == f32::NEG_INFINITY && **new > f32::NEG_INFINITY)
            .map(|(id, _)| id)
            .collect()
    }

    pub(super) fn check_token(&self, row: &[f32], token: TokenId) -> Result<TokenId, Fault> {
        match row.get(token as usize) {
            Some(&logit) if logit > f32::NEG_INFINITY => Ok(token),
            Some(_) => Err(self.fault(
                kind::BANNED_TOKEN,
                format!("`sample` returned the token {token}, which is banned"),
            )),
            None => Err(self.fault(
                kind::BANNED_TOKEN,
                format!(
                    "`sample` returned the token {token}, the vocabulary has {}",
                    row.len()
                ),
            )),
        }
    }
}

/// A panic of the host inside a call leaves the instance unusable.
fn lock<'a>(instance: &'a Mutex<Instance>, stage: &str) -> Result<MutexGuard<'a, Instance>, Fault> {
    instance.lock().map_err(|_| {
        fault(
            stage,
            kind::TRAP,
            "the host failed in an earlier call of this instance",
        )
    })
}
