//! The stages of one sequence, in the order of its chain: token processors,
//! logits processors, one sampler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::crossed::Crossed;
use super::deadline::Deadline;
use super::fault::{fault, kind};
use super::loaded::Kind;
use super::record::Breaker;
use super::report::{Change, Choice, Did, Effect, Explanation, Report};
use super::stage::Stage;
use super::stages::OnFault;
use super::vocabulary::Vocabulary;
use crate::engine::{Chain, Fault, LogitsRow, Plan, Presence, TokenId};
use sluice_contract::chance::Chance;
use sluice_contract::phase::Decision;
use sluice_kernels::row::{self, Scanned};

/// The stage that faults of the model's own row name.
const MODEL: &str = "model";

/// What the stages of a chain are held to.
#[derive(Clone, Copy)]
pub(super) struct ChainLimits {
    /// For all plans of a position together, and again for the rest of it.
    pub(super) call: Duration,
    /// For all plans of a position that may be late together.
    pub(super) late: Duration,
    /// For all that the stages do in the sequence.
    pub(super) total: Duration,
    pub(super) breaker: Breaker,
}

/// The open chain of one choice.
pub struct OpenChain {
    pub(super) vocabulary: Arc<Vocabulary>,
    /// Token processors, then logits processors.
    pub(super) processors: Vec<Stage>,
    pub(super) sampler: Stage,
    pub(super) limits: ChainLimits,
    /// How long the batch waits for a plan, if one may be late.
    pub(super) patience: Option<Duration>,
    /// Time that its stages have taken until now.
    pub(super) spent: Duration,
    /// Time of the call that runs in which they only waited for other choices.
    pub(super) waited: Duration,
    /// Time that the sampler took at the last position.
    pub(super) sampled: Duration,
    /// All tokens accepted so far, where a stage may have to be told again.
    pub(super) tokens: Option<Vec<TokenId>>,
    pub(super) seed: i64,
    pub(super) choice: u32,
    /// Tokens generated so far.
    pub(super) position: u32,
    /// A bit for each id, all zero between uses.
    pub(super) bits: Vec<u32>,
    pub(super) report: Arc<Report>,
    /// Stages that failed while this position was planned and were left out.
    pub(super) skipped: Vec<Effect>,
    /// Taken by whoever waits for its tokens.
    pub(super) presence: Option<Presence>,
}

impl OpenChain {
    /// What its stages do, kept up to date while it runs.
    pub fn report(&self) -> Arc<Report> {
        Arc::clone(&self.report)
    }

    /// Takes its chance from now on as this choice of a request with this seed.
    /// For checks alone: they hold what stages remember against what they may.
    pub fn set_chance(&mut self, seed: i64, choice: u32) {
        self.seed = seed;
        self.choice = choice;
    }

    /// Tokens that are banned in `row`, the model's at the last position, and
    /// that the first stage would have raised there if it could. For checks
    /// alone, of chains that explain themselves.
    pub fn raises_banned(&self, row: &[f32]) -> Vec<TokenId> {
        self.processors
            .first()
            .map_or_else(Vec::new, |stage| stage.raises_banned(row))
    }

    /// What the calls of the first stage have carried over the boundary, from
    /// its first `plan`, `process` or `sample` on.
    pub fn crossed(&self) -> Crossed {
        self.processors.first().unwrap_or(&self.sampler).crossed
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
    fn check_row(&self, row: &mut LogitsRow<'_>) -> Result<(), Fault> {
        let info = self.vocabulary.info();
        let n_logits = row.values().len();
        if n_logits != info.vocabulary_size as usize {
            let message = format!(
                "the row has {n_logits} logits, the vocabulary {}",
                info.vocabulary_size
            );
            return Err(fault(MODEL, kind::MODEL_ROW, message));
        }
        row.ban_from(info.tokenizer_size as usize);
        if scan(row)?.is_banned() {
            let message = "every logit of the row is negative infinity";
            return Err(fault(MODEL, kind::ALL_BANNED, message));
        }
        Ok(())
    }

    /// A stage that has used up what all of them may take in a sequence is
    /// not called again. The one that took most of it is at fault.
    fn check_total(&self) -> Result<(), Fault> {
        if self.spent <= self.limits.total {
            return Ok(());
        }
        let (index, stage) = self.report.slowest();
        let message = format!(
            "the stages have taken {:?} in this sequence, most of it this one; the limit is {:?}",
            self.spent, self.limits.total
        );
        let fault = fault(&stage, kind::TOTAL_TIME, message);
        self.report
            .failed(index, &fault, self.limits.breaker, false);
        Err(fault)
    }

    /// Asks the token processors in their order, until one decides the
    /// position. `effects` says of faults that were skipped.
    /// What the chain has `waited` for its turn is gone of the time of what may be
    /// late; else a step has been held up by as much for other choices.
    fn plan_stages(
        &mut self,
        waited: Duration,
        effects: &mut Vec<Effect>,
    ) -> Result<Option<Decision>, Fault> {
        let held_up = match self.patience {
            None => waited,
            Some(_) => Duration::ZERO,
        };
        let mut deadline = Deadline::behind(held_up, self.limits.call);
        let mut late = Deadline::with_gone(waited, self.limits.late);
        for index in 0..self.processors.len() {
            let stage = &self.processors[index];
            if stage.kind() != Kind::TokenProcessor {
                break;
            }
            // Each of the two deadlines stands still while the other runs.
            let (own, other) = match stage.source.on_fault {
                OnFault::Wait => (&mut late, &mut deadline),
                OnFault::Fail | OnFault::Skip => (&mut deadline, &mut late),
            };
            let started = Instant::now();
            let planned = self.plan_stage(index, *own, effects);
            *other = other.later_by(started.elapsed());
            *own = own.after_waiting(self.take_waited(index));
            let decision = planned?;
            let Some(decision) = decision else { continue };
            if self.report.explains() {
                let did = match &decision {
                    Decision::Force(tokens) => Did::Forced {
                        tokens: tokens.clone(),
                    },
                    Decision::Stop => Did::Stopped,
                };
                effects.push(self.processors[index].effect(did));
                self.explain(std::mem::take(effects));
            }
            return Ok(Some(decision));
        }
        Ok(None)
    }

    /// How long a stage has waited for other choices since the last time. It is
    /// no time of the chain's.
    fn take_waited(&mut self, index: usize) -> Duration {
        let stage = self.processors.get_mut(index).unwrap_or(&mut self.sampler);
        let waited = stage.take_waited();
        self.waited += waited;
        waited
    }

    /// Counts the time since `started`, but for what was waited.
    fn spend(&mut self, started: Instant) {
        let waited = std::mem::take(&mut self.waited);
        self.spent += started.elapsed().saturating_sub(waited);
    }

    /// Asks one token processor about the position.
    fn plan_stage(
        &mut self,
        index: usize,
        deadline: Deadline,
        effects: &mut Vec<Effect>,
    ) -> Result<Option<Decision>, Fault> {
        let started = Instant::now();
        let stage = &mut self.processors[index];
        let reopened = match &self.tokens {
            Some(tokens) if stage.is_stale => stage.reopen(tokens, deadline),
            _ => Ok(()),
        };
        let planned = reopened.and_then(|()| stage.plan(deadline));
        let time = started.elapsed();
        self.report
            .called(index, time.saturating_sub(stage.waited()));
        if self.patience.is_some_and(|patience| time > patience) {
            self.report.late(index);
        }
        planned.or_else(|fault| {
            let skips = stage.skips();
            self.report
                .failed(index, &fault, self.limits.breaker, skips);
            if !skips {
                return Err(stage.after_skips(fault));
            }
            let fault = fault.to_string();
            effects.push(stage.effect(Did::Skipped { fault }));
            Ok(None)
        })
    }

    /// Runs one stage on the row, after the ones before it.
    fn process(
        &mut self,
        index: usize,
        row: &mut LogitsRow<'_>,
        deadline: &mut Deadline,
    ) -> Result<(), Fault> {
        let mut new_row = None;
        if self.processors[index].kind() == Kind::LogitsProcessor {
            let chance = self.chance(self.processors[index].lane);
            let row = scan(row)?;
            let started = Instant::now();
            let processed = self.processors[index].process(row, chance, *deadline);
            let time = started.elapsed();
            let waited = self.take_waited(index);
            *deadline = deadline.after_waiting(waited);
            self.report.called(index, time.saturating_sub(waited));
            new_row = processed?;
        }
        let started = Instant::now();
        let stage = &mut self.processors[index];
        stage.returned = None;
        match new_row {
            Some(new_row) => {
                stage.replace(row, &new_row)?;
                stage.returned = self.report.explains().then_some(new_row);
            }
            None => stage.apply_edits(row, &mut self.bits)?,
        }
        self.report
            .worked(index, stage.edits.len(), started.elapsed());
        // Ends at the first token that is left: nearly always at once.
        if row.values().iter().any(|&logit| logit > f32::NEG_INFINITY) {
            Ok(())
        } else {
            Err(stage.fault(kind::ALL_BANNED, "it banned the last token that was left"))
        }
    }

    fn sample(&mut self, row: &mut LogitsRow<'_>, deadline: Deadline) -> Result<TokenId, Fault> {
        let chance = self.chance(self.sampler.lane);
        let scanned = scan(row)?;
        let started = Instant::now();
        let token = self.sampler.sample(scanned, chance, deadline);
        let time = started.elapsed();
        self.sampled = time.saturating_sub(self.take_waited(self.processors.len()));
        self.report.called(self.processors.len(), self.sampled);
        self.sampler.check_token(row.values(), token?)
    }

    /// Says what the stages did at this position, where that is wanted.
    fn explain(&self, stages: Vec<Effect>) {
        self.report.explain(Explanation {
            position: self.position,
            stages,
        });
    }
}

/// What is known of a row that the model has computed, or of what stages have left
/// of it. After them there is nothing bad: edits that overflow and rows with bad
/// values are faults of their own.
fn scan<'a>(row: &'a mut LogitsRow<'_>) -> Result<Scanned<'a>, Fault> {
    row.scan()
        .map_err(|bad| fault(MODEL, kind::MODEL_ROW, bad.to_string()))
}

impl Chain for OpenChain {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.plan_after(Duration::ZERO, accepted)
    }

    fn plan_after(&mut self, waited: Duration, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.position += accepted.len() as u32;
        if let Some(tokens) = &mut self.tokens {
            tokens.extend_from_slice(accepted);
        }
        self.sampler.pending.extend_from_slice(accepted);
        self.sampler.log.clear();
        for stage in &mut self.processors {
            stage.pending.extend_from_slice(accepted);
            stage.edits.clear();
            stage.log.clear();
        }
        self.check_total()?;
        let started = Instant::now();
        let mut effects = Vec::new();
        let decision = self.plan_stages(waited, &mut effects);
        self.spend(started);
        self.skipped = effects;
        Ok(match decision? {
            None => Plan::Sample,
            Some(Decision::Force(tokens)) => Plan::Force(tokens),
            Some(Decision::Stop) => Plan::Stop,
        })
    }

    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        let started = Instant::now();
        self.sampled = Duration::ZERO;
        let token = self.choose(row);
        self.spend(started);
        token
    }

    fn sample_time(&self) -> Duration {
        self.sampled
    }

    fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// Stages whose faults are skipped have instances of their own.
    fn shares_plans(&self) -> bool {
        let mut planning = self
            .processors
            .iter()
            .take_while(|stage| stage.kind() == Kind::TokenProcessor);
        planning.any(|stage| stage.source.on_fault != OnFault::Skip)
    }

    fn take_presence(&mut self) -> Option<Presence> {
        self.presence.take()
    }
}

impl OpenChain {
    /// Runs the stages that need the row.
    fn choose(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        self.check_row(row)?;
        let mut deadline = Deadline::after(self.limits.call);
        let explains = self.report.explains();
        let mut effects = std::mem::take(&mut self.skipped);
        for index in 0..self.processors.len() {
            let may_skip = self.processors[index].source.on_fault == OnFault::Skip;
            let before = (explains || may_skip).then(|| row.values().to_vec());
            if let Err(fault) = self.process(index, row, &mut deadline) {
                // Its edits were made while the position was planned; what is
                // wrong with them shows on the row alone.
                let stage = &mut self.processors[index];
                let skips = stage.skips();
                self.report
                    .failed(index, &fault, self.limits.breaker, skips);
                let Some(before) = before.filter(|_| skips) else {
                    return Err(fault);
                };
                row.change(|row| row.copy_from_slice(&before));
                let fault = fault.to_string();
                effects.push(self.processors[index].effect(Did::Skipped { fault }));
                continue;
            }
            if let Some(before) = before.filter(|_| explains) {
                // An explanation changes no outcome: its time is the host's.
                let started = Instant::now();
                let change = Change::between(&before, row.values());
                deadline = deadline.later_by(started.elapsed());
                let did = if change.is_nothing() {
                    Did::Unchanged
                } else {
                    Did::Changed(change)
                };
                effects.push(self.processors[index].effect(did));
            }
        }
        let token = self.sample(row, deadline).inspect_err(|fault| {
            let index = self.processors.len();
            self.report.failed(index, fault, self.limits.breaker, false);
        })?;
        if explains {
            let choice_changed = row::argmax(row.values()) != Some(token);
            let choice = Choice {
                token,
                choice_changed,
            };
            effects.push(self.sampler.effect(Did::Chose(choice)));
            self.explain(effects);
        }
        Ok(token)
    }
}
