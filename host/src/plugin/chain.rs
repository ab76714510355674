//! The stages of one sequence, in the order of its chain: token processors,
//! logits processors, one sampler.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use wasmtime::component::ResourceAny;

use super::deadline::Deadline;
use super::edits::{Edits, Overflow};
use super::fault::{fault, kind};
use super::instance::Instance;
use super::loaded::Kind;
use super::random::Chance;
use super::report::{Change, Choice, Did, Effect, Explanation, Report};
use super::state::Decision;
use super::vocabulary::Vocabulary;
use crate::engine::{Chain, Fault, Plan, TokenId};
use sluice_kernels::row::{self, RowState};

/// The stage that faults of the model's own row name.
const MODEL: &str = "model";

/// One open stage of one sequence.
pub(super) struct Stage {
    name: String,
    kind: Kind,
    lane: u32,
    /// Shared by the choices of the request.
    instance: Arc<Mutex<Instance>>,
    sequence: ResourceAny,
    /// Accepted tokens that the stage has not been told of.
    pending: Vec<TokenId>,
    /// Made at this position.
    edits: Edits,
}

impl Stage {
    pub(super) fn new(
        name: String,
        kind: Kind,
        lane: u32,
        instance: Arc<Mutex<Instance>>,
        sequence: ResourceAny,
    ) -> Self {
        Self {
            name,
            kind,
            lane,
            instance,
            sequence,
            pending: Vec::new(),
            edits: Edits::default(),
        }
    }

    fn plan(&mut self, deadline: Deadline) -> Result<Option<Decision>, Fault> {
        let mut instance = lock(&self.instance, &self.name)?;
        let decision = instance.plan(self.sequence, &self.pending, deadline, &mut self.edits)?;
        self.pending.clear();
        Ok(decision)
    }

    fn process(
        &mut self,
        row: &mut [f32],
        chance: Chance,
        deadline: Deadline,
    ) -> Result<Option<Vec<f32>>, Fault> {
        let mut instance = lock(&self.instance, &self.name)?;
        let new_row = instance.process(
            self.sequence,
            &self.pending,
            row,
            chance,
            deadline,
            &mut self.edits,
        )?;
        self.pending.clear();
        Ok(new_row)
    }

    fn sample(
        &mut self,
        row: &[f32],
        chance: Chance,
        deadline: Deadline,
    ) -> Result<TokenId, Fault> {
        let mut instance = lock(&self.instance, &self.name)?;
        let token = instance.sample(self.sequence, &self.pending, row, chance, deadline)?;
        self.pending.clear();
        Ok(token)
    }

    fn fault(&self, kind: &'static str, message: impl Into<String>) -> Fault {
        fault(&self.name, kind, message)
    }

    fn effect(&self, did: Did) -> Effect {
        Effect {
            stage: self.name.clone(),
            did,
        }
    }

    fn apply_edits(&self, row: &mut [f32], bits: &mut [u32]) -> Result<(), Fault> {
        self.edits.apply(row, bits).map_err(|Overflow| {
            self.fault(kind::INVALID_EDIT, "its edits raised a logit to infinity")
        })
    }

    /// Puts the row that `process` returned in the place of the old one. What
    /// was banned stays banned.
    fn replace(&self, row: &mut [f32], new_row: &[f32]) -> Result<(), Fault> {
        if !self.edits.is_empty() {
            return Err(self.fault(
                kind::INVALID_EDIT,
                "`process` made edits and returned a row; it may do one of them",
            ));
        }
        if new_row.len() != row.len() {
            return Err(self.fault(
                kind::INVALID_ROW,
                format!(
                    "`process` returned a row of {} values, the vocabulary has {}",
                    new_row.len(),
                    row.len()
                ),
            ));
        }
        if let Err(id) = row::check(new_row) {
            return Err(self.fault(
                kind::INVALID_ROW,
                format!("`process` returned {} for the token {id}", new_row[id]),
            ));
        }
        for (logit, &new) in row.iter_mut().zip(new_row) {
            if *logit > f32::NEG_INFINITY {
                *logit = new;
            }
        }
        Ok(())
    }

    fn check_token(&self, row: &[f32], token: TokenId) -> Result<TokenId, Fault> {
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

/// The open chain of one choice.
pub struct OpenChain {
    pub(super) vocabulary: Arc<Vocabulary>,
    /// Token processors, then logits processors.
    pub(super) processors: Vec<Stage>,
    pub(super) sampler: Stage,
    /// For all plans of a position together, and again for the rest of it.
    pub(super) limit: Duration,
    pub(super) seed: i64,
    pub(super) choice: u32,
    /// Tokens generated so far.
    pub(super) position: u32,
    /// A bit for each id, all zero between uses.
    pub(super) bits: Vec<u32>,
    pub(super) report: Arc<Report>,
}

impl OpenChain {
    /// What its stages do, kept up to date while it runs.
    pub fn report(&self) -> Arc<Report> {
        Arc::clone(&self.report)
    }

    fn chance(&self, lane: u32) -> Chance {
        Chance {
            seed: self.seed,
            position: self.position,
            choice: self.choice,
            lane,
        }
    }

    /// Refuses a row that cannot be worked on and bans the padding ids.
    fn check_row(&self, row: &mut [f32]) -> Result<(), Fault> {
        let info = self.vocabulary.info();
        if row.len() != info.vocabulary_size as usize {
            let message = format!(
                "the row has {} logits, the vocabulary {}",
                row.len(),
                info.vocabulary_size
            );
            return Err(fault(MODEL, kind::MODEL_ROW, message));
        }
        row[info.tokenizer_size as usize..].fill(f32::NEG_INFINITY);
        match row::check(row) {
            Ok(RowState::Open) => Ok(()),
            Ok(RowState::AllBanned) => Err(fault(
                MODEL,
                kind::ALL_BANNED,
                "every logit of the row is negative infinity",
            )),
            Err(id) => Err(fault(
                MODEL,
                kind::MODEL_ROW,
                format!("the logit of the token {id} is {}", row[id]),
            )),
        }
    }

    /// Says what a stage decided, where that is wanted.
    fn explain_decision(&self, stage: &Stage, did: impl FnOnce() -> Did) {
        if self.report.explains() {
            self.report.explain(Explanation {
                position: self.position,
                stages: vec![stage.effect(did())],
            });
        }
    }

    /// Runs one stage on the row, after the ones before it.
    fn process(&mut self, index: usize, row: &mut [f32], deadline: Deadline) -> Result<(), Fault> {
        let started = Instant::now();
        let chance = self.chance(self.processors[index].lane);
        let stage = &mut self.processors[index];
        let new_row = match stage.kind {
            Kind::LogitsProcessor => {
                let new_row = stage.process(row, chance, deadline)?;
                self.report.called(index, Duration::ZERO);
                new_row
            }
            _ => None,
        };
        match new_row {
            Some(new_row) => stage.replace(row, &new_row)?,
            None => stage.apply_edits(row, &mut self.bits)?,
        }
        self.report
            .worked(index, stage.edits.len(), started.elapsed());
        // Ends at the first token that is left: nearly always at once.
        if row.iter().any(|&logit| logit > f32::NEG_INFINITY) {
            Ok(())
        } else {
            Err(stage.fault(kind::ALL_BANNED, "it banned the last token that was left"))
        }
    }
}

impl Chain for OpenChain {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.position += accepted.len() as u32;
        self.sampler.pending.extend_from_slice(accepted);
        for stage in &mut self.processors {
            stage.pending.extend_from_slice(accepted);
            stage.edits.clear();
        }
        let deadline = Deadline::after(self.limit);
        for index in 0..self.processors.len() {
            let stage = &mut self.processors[index];
            if stage.kind != Kind::TokenProcessor {
                break;
            }
            let started = Instant::now();
            let decision = stage.plan(deadline)?;
            self.report.called(index, started.elapsed());
            let stage = &self.processors[index];
            match decision {
                None => {}
                Some(Decision::Force(tokens)) => {
                    self.explain_decision(stage, || Did::Forced {
                        tokens: tokens.clone(),
                    });
                    return Ok(Plan::Force(tokens));
                }
                Some(Decision::Stop) => {
                    self.explain_decision(stage, || Did::Stopped);
                    return Ok(Plan::Stop);
                }
            }
        }
        Ok(Plan::Sample)
    }

    fn finish(&mut self, row: &mut [f32]) -> Result<TokenId, Fault> {
        self.check_row(row)?;
        let deadline = Deadline::after(self.limit);
        let explains = self.report.explains();
        let mut effects = Vec::new();
        for index in 0..self.processors.len() {
            let before = explains.then(|| row.to_vec());
            self.process(index, row, deadline)?;
            if let Some(before) = before {
                let change = Change::between(&before, row);
                effects.push(self.processors[index].effect(Did::Changed(change)));
            }
        }
        let chance = self.chance(self.sampler.lane);
        let started = Instant::now();
        let token = self.sampler.sample(row, chance, deadline)?;
        self.report.called(self.processors.len(), started.elapsed());
        let token = self.sampler.check_token(row, token)?;
        if explains {
            let choice_changed = row::argmax(row) != Some(token);
            let choice = Choice {
                token,
                choice_changed,
            };
            effects.push(self.sampler.effect(Did::Chose(choice)));
            self.report.explain(Explanation {
                position: self.position,
                stages: effects,
            });
        }
        Ok(token)
    }
}
