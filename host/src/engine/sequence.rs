//! One stream of tokens, from submission to its last event.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_kernels::row::LogitsRows;
use tokio::sync::mpsc;

use super::{
    Chain, Fault, Logits, LogitsRow, LogprobOptions, Logprobs, LogprobsOf, Plan, Presence, TokenId,
    commit::{End, commit},
    draft::Drafter,
    logprobs::logprobs,
    planner::{Planner, RequestKey, Turns, request_key},
};

/// Events that may lie unread before a reader counts as gone.
pub const EVENT_BUFFER: usize = 1024;

/// A sequence to generate. The engine checks nothing that the caller could
/// have refused with a better message, except what would break it.
pub struct Submission {
    /// Exactly the tokens to condition on; at least one.
    pub prompt: Vec<TokenId>,
    /// The most tokens to generate; prompt and completion together fit the
    /// model's context. With 0 nothing is sampled: the prompt's logprobs are
    /// all there is to have.
    pub max_tokens: u32,
    /// Every id that ends the sequence: the model's and the request's.
    pub end_ids: Vec<TokenId>,
    /// The open stages that choose its tokens.
    pub chain: Box<dyn Chain>,
    /// Which logprobs come with the tokens.
    pub logprobs: Option<LogprobOptions>,
    /// Where its events go; [`EVENT_BUFFER`] is a good size. Dropping the
    /// receiver cancels the sequence, and so does falling a whole buffer
    /// behind.
    pub events: mpsc::Sender<Event>,
}

/// A token of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub id: TokenId,
    /// Where they are wanted; the first token of a prompt has none.
    pub logprobs: Option<Box<Logprobs>>,
}

/// What happens to a sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// So many tokens of the prompt did not have to be computed: the cache had
    /// them. Comes before any other event, if there are some.
    Cached(usize),
    /// Tokens of the prompt, in order, where their logprobs are wanted. All of
    /// them come before those that are generated.
    Prompt(Vec<Token>),
    /// Tokens that joined the context, at least one; an end id never does.
    Tokens(Vec<Token>),
    /// The end id that was chosen, where logprobs are wanted.
    End(Token),
    /// How many drafted tokens were right, and how many wrong. Comes before the
    /// last event, if there were some.
    Drafted { accepted: usize, rejected: usize },
    /// The last event.
    Finished(FinishReason),
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end id was chosen, or a stage stopped the sequence.
    Stop,
    /// The length limit was reached.
    Length,
    /// The reader went away or fell too far behind.
    Cancelled,
    /// A stage failed.
    PluginError(Fault),
    /// The model was lost.
    EngineError(String),
}

pub(super) struct Sequence {
    /// None while it plans on a thread of its own.
    chain: Option<Box<dyn Chain>>,
    /// How long a step waits for its plan, if not until it is there.
    patience: Option<Duration>,
    planner: Option<Planner>,
    /// Tells a plan that runs when the sequence is gone.
    presence: Option<Presence>,
    /// Its request, where its plans exclude those of the other choices.
    shares_plans: Option<RequestKey>,
    /// The logits of a position whose plan is late.
    kept_row: Option<Logits>,
    events: mpsc::Sender<Event>,
    end_ids: Vec<TokenId>,
    max_tokens: usize,
    /// Prompt and generated tokens.
    context: Vec<TokenId>,
    prompt_len: usize,
    /// Tokens of the context that the model has computed.
    computed: usize,
    /// Tokens of the context that the chain has been told of.
    told: usize,
    /// Tokens of the context that this step computes.
    scheduled: usize,
    /// Tokens that this step computes after the context's last, in case they
    /// come next.
    drafts: Vec<TokenId>,
    drafter: Drafter,
    /// Tokens of the context that the reader has, or does not want.
    reported: usize,
    logprobs: Option<LogprobOptions>,
    /// Logprobs of the tokens that follow the reported ones, as far as known.
    known: VecDeque<Option<Box<Logprobs>>>,
    /// How it ends once everything is reported. Nothing is sampled any more.
    ending: Option<FinishReason>,
    /// The last token of the context is an end id, kept for its logprobs.
    ends_with_id: bool,
    /// Whether it was in the batch before.
    was_in_batch: bool,
    /// Whether some of it was computed before.
    was_computed: bool,
    pub(super) submitted: Instant,
    /// What its submitter knows it by, where its steps are wanted.
    pub(super) mark: Option<u64>,
    /// What this step's rows took, and of that what the sampler took.
    row_time: Duration,
    sample_time: Duration,
    pub(super) slot: u32,
    plan: Option<Result<Plan, Fault>>,
    pub(super) finished: Option<FinishReason>,
}

impl Sequence {
    pub(super) fn new(mut submission: Submission) -> Self {
        let presence = submission.chain.take_presence();
        let prompt_len = submission.prompt.len();
        let of_prompt = submission.logprobs.is_some_and(|options| options.prompt);
        Self {
            patience: submission.chain.patience(),
            shares_plans: presence
                .as_ref()
                .filter(|_| submission.chain.shares_plans())
                .map(request_key),
            presence,
            chain: Some(submission.chain),
            planner: None,
            kept_row: None,
            events: submission.events,
            end_ids: submission.end_ids,
            max_tokens: submission.max_tokens as usize,
            context: submission.prompt,
            prompt_len,
            computed: 0,
            told: prompt_len,
            scheduled: 0,
            drafts: Vec::new(),
            drafter: Drafter::default(),
            reported: if of_prompt { 0 } else { prompt_len },
            logprobs: submission.logprobs,
            // Nothing comes before the first token of a prompt.
            known: of_prompt.then_some(None).into_iter().collect(),
            ending: (submission.max_tokens == 0).then_some(FinishReason::Length),
            ends_with_id: false,
            was_in_batch: false,
            was_computed: false,
            submitted: Instant::now(),
            mark: None,
            row_time: Duration::ZERO,
            sample_time: Duration::ZERO,
            slot: 0,
            plan: None,
            finished: None,
        }
    }

    /// Tokens that it holds in the cache once everything known is computed, and
    /// one more.
    pub(super) fn claim(&self) -> usize {
        (self.context.len() + 1).min(self.prompt_len + self.max_tokens)
    }

    /// Whether it can be taken out of the batch: not while a plan is late.
    pub(super) fn can_wait(&self) -> bool {
        self.chain.is_some() && self.kept_row.is_none() && self.plan.is_none()
    }

    /// What was computed is lost, and will be computed again. Neither its
    /// reader nor its stages notice.
    pub(super) fn start_over(&mut self) {
        self.was_in_batch = true;
        self.was_computed |= self.computed > 0;
        self.computed = 0;
    }

    /// Whether this is its first place in the batch.
    pub(super) fn is_new(&self) -> bool {
        !self.was_in_batch
    }

    /// What this step's rows took, and of that what the sampler took.
    pub(super) fn take_row_times(&mut self) -> [Duration; 2] {
        [&mut self.row_time, &mut self.sample_time].map(std::mem::take)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Tokens that must be computed before the next position can be sampled,
    /// or before everything can be reported.
    pub(super) fn pending(&self) -> &[TokenId] {
        let end = match self.ending {
            None => self.context.len(),
            Some(_) if self.reported == self.context.len() => self.computed,
            Some(_) => self.context.len() - 1,
        };
        &self.context[self.computed.min(end)..end]
    }

    /// Prompt and generated tokens.
    pub(super) fn context(&self) -> &[TokenId] {
        &self.context
    }

    /// What it may begin with, if others have computed it: all that comes before
    /// the first token whose logits are needed. That is the last one, or the one
    /// before the first that still waits for its logprobs. None once it has begun,
    /// or where the logits of the whole prompt are wanted.
    pub(super) fn shareable(&self) -> Option<&[TokenId]> {
        let of_prompt = self.logprobs.is_some_and(|options| options.prompt);
        let begins = self.computed == 0 && self.ending.is_none() && !of_prompt;
        begins.then(|| &self.context[..self.reported.saturating_sub(1)])
    }

    /// The first `n_tokens` are in the cache already.
    pub(super) fn begin_with(&mut self, n_tokens: usize) {
        self.computed = n_tokens;
        if !self.was_computed {
            // A reader that is gone shows before the next step.
            let _ = self.events.try_send(Event::Cached(n_tokens));
        }
    }

    pub(super) fn computed(&self) -> usize {
        self.computed
    }

    /// What another may begin with, now or soon: what is computed, and all of the
    /// prompt, which does not wait for anything to be chosen.
    pub(super) fn offers(&self) -> &[TokenId] {
        &self.context[..self.computed.max(self.prompt_len)]
    }

    /// Takes the first `count` pending tokens into this step.
    pub(super) fn schedule(&mut self, count: usize) {
        self.scheduled = count;
        self.drafts.clear();
    }

    /// Takes at most `most` drafted tokens into this step, where it decodes.
    /// Returns how many.
    pub(super) fn draft(&mut self, most: usize) -> usize {
        let generated = self.context.len() - self.prompt_len;
        if self.scheduled == 1 && self.samples() && !self.may_be_late() {
            // One token is chosen after the last draft.
            let room = self.max_tokens - generated - 1;
            let drafts = self.drafter.draft(&self.context, most.min(room));
            self.drafts.extend_from_slice(drafts);
        }
        self.drafts.len()
    }

    /// The tokens that this step computes.
    pub(super) fn scheduled(&self) -> impl Iterator<Item = TokenId> {
        let pending = &self.context[self.computed..self.computed + self.scheduled];
        pending.iter().chain(&self.drafts).copied()
    }

    /// Whether the logits that follow the token at `index`, which this step
    /// computes, are needed: to sample, or for the logprobs of a token that is
    /// known already.
    pub(super) fn wants_logits(&self, index: usize) -> bool {
        let next = index + 1;
        if next >= self.context.len() {
            self.samples()
        } else {
            self.logprobs.is_some() && next >= self.reported
        }
    }

    /// How many logits rows of this step are its own.
    pub(super) fn n_rows(&self) -> usize {
        (self.computed..self.computed + self.scheduled + self.drafts.len())
            .filter(|&index| self.wants_logits(index))
            .count()
    }

    /// Whether this step computes everything that is pending, so that the
    /// next position can be decided.
    pub(super) fn samples(&self) -> bool {
        self.ending.is_none()
            && self.scheduled > 0
            && self.computed + self.scheduled == self.context.len()
    }

    /// Sequences whose plans can only be made one after the other have the same: the
    /// choices of a request, as far as they share something.
    pub(super) fn plans_with(&self) -> RequestKey {
        let own = std::ptr::from_ref(self).addr();
        self.shares_plans.unwrap_or(own)
    }

    /// Whether a step goes on without it when its plan is late.
    pub(super) fn may_be_late(&self) -> bool {
        self.patience.is_some()
    }

    /// Lets the chain plan, which has `waited` for its turn.
    pub(super) fn plan(&mut self, waited: Duration) {
        if let Some(chain) = &mut self.chain {
            self.plan = Some(chain.plan_after(waited, &self.context[self.told..]));
            self.told = self.context.len();
        }
    }

    /// Lets the chain plan on a thread of its own.
    pub(super) fn start_plan(&mut self, turns: &Arc<Turns>) {
        let Some(chain) = self.chain.take() else {
            return;
        };
        let planner = match self.planner.take() {
            Some(planner) => Ok(planner),
            None => Planner::start(turns, self.presence.as_ref()),
        };
        match planner {
            Ok(planner) => {
                let accepted = self.context[self.told..].to_vec();
                self.planner.insert(planner).ask(chain, accepted);
                self.told = self.context.len();
            }
            Err(fault) => self.fail(fault),
        }
    }

    /// Takes the plan that was started, once the batch has waited for it as
    /// long as it does.
    pub(super) fn take_plan(&mut self) {
        let (None, Some(planner), Some(patience)) = (&self.chain, &self.planner, self.patience)
        else {
            return;
        };
        match planner.wait(patience) {
            Ok(None) => {}
            Ok(Some((chain, plan))) => {
                self.chain = Some(chain);
                self.plan = Some(plan);
            }
            Err(fault) => self.fail(fault),
        }
    }

    /// Whether its logits rows are needed, as far as the plan is known.
    pub(super) fn reads_rows(&self) -> bool {
        self.logprobs.is_some() || matches!(self.plan, None | Some(Ok(Plan::Sample)))
    }

    /// Whether the plan of a row that was kept has come.
    pub(super) fn has_caught_up(&self) -> bool {
        self.kept_row.is_some() && self.plan.is_some()
    }

    /// Reads its logits rows: notes the logprobs that are wanted, and replaces
    /// a plan to sample by the token that the chain chooses.
    /// The row of a position whose plan is late is kept until it is there.
    pub(super) fn read_rows(&mut self, rows: &mut LogitsRows<'_>, tokenizer_size: usize) {
        let started = Instant::now();
        self.read(rows, tokenizer_size);
        self.row_time = started.elapsed();
    }

    fn read(&mut self, rows: &mut LogitsRows<'_>, tokenizer_size: usize) {
        if let Some(mut row) = self.kept_row.take() {
            return self.choose(&mut row.row(), tokenizer_size);
        }
        let samples = self.samples();
        let n_known = self.n_rows() - self.drafts.len() - usize::from(samples);
        for row in rows.take_rows(n_known) {
            let next = self.context[self.reported + self.known.len()];
            self.note(row.values(), next, tokenizer_size);
        }
        if !samples {
            return;
        }
        let Some(mut sampled) = rows.next() else {
            return;
        };
        match self.plan {
            None => self.kept_row = Some(Logits::from(sampled.values())),
            Some(Err(_)) => {}
            Some(Ok(_)) => {
                self.choose(&mut sampled, tokenizer_size);
                self.verify(rows, tokenizer_size);
            }
        }
    }

    /// Goes on while the token that was chosen is the one that was drafted:
    /// its row is there already. What is left is the plan of the first position
    /// whose row is not.
    fn verify(&mut self, rows: &mut LogitsRows<'_>, tokenizer_size: usize) {
        let drafts = std::mem::take(&mut self.drafts);
        let mut accepted = 0;
        for (&draft, mut row) in drafts.iter().zip(rows) {
            match &self.plan {
                Some(Ok(Plan::Force(tokens))) if tokens[..] == [draft] => {}
                _ => break,
            }
            self.plan = None;
            self.accept(&[draft]);
            if self.ending.is_some() {
                break;
            }
            accepted += 1;
            self.scheduled += 1;
            self.plan(Duration::ZERO);
            self.choose(&mut row, tokenizer_size);
        }
        if !drafts.is_empty() {
            self.drafter.learn(drafts.len(), accepted);
        }
    }

    fn choose(&mut self, row: &mut LogitsRow<'_>, tokenizer_size: usize) {
        let wants_raw = |options: LogprobOptions| options.of == LogprobsOf::Raw;
        match &self.plan {
            Some(Ok(Plan::Sample)) => {
                let raw = self
                    .logprobs
                    .is_some_and(wants_raw)
                    .then(|| row.values().to_vec());
                let Some(chain) = &mut self.chain else { return };
                let chosen = chain.finish(row);
                self.sample_time += chain.sample_time();
                match chosen {
                    Ok(token) => {
                        self.plan = Some(Ok(Plan::Force(vec![token])));
                        let row = raw.as_deref().unwrap_or(row.values());
                        self.note(row, token, tokenizer_size);
                    }
                    Err(fault) => self.plan = Some(Err(fault)),
                }
            }
            Some(Ok(Plan::Force(tokens))) => {
                if let Some(&first) = tokens.first() {
                    self.note(row.values(), first, tokenizer_size);
                }
            }
            _ => {}
        }
    }

    /// Keeps the logprobs of the next unreported token, where they are wanted.
    fn note(&mut self, row: &[f32], token: TokenId, tokenizer_size: usize) {
        let Some(options) = self.logprobs else { return };
        match logprobs(row, token, options.n_top, tokenizer_size) {
            Some(found) => self.known.push_back(Some(Box::new(found))),
            None => self.fail(Fault {
                stage: "model".into(),
                kind: "model_row",
                message: "a logits row whose logprobs are wanted has a NaN, an infinity or \
                          nothing left"
                    .into(),
            }),
        }
    }

    /// Fails the position, whatever was planned.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.plan = Some(Err(fault));
    }

    /// Ends the step: counts what was computed and hands out what was decided.
    pub(super) fn commit(&mut self) {
        self.computed += std::mem::take(&mut self.scheduled);
        match self.plan.take() {
            None => {}
            Some(Ok(Plan::Force(tokens))) => self.accept(&tokens),
            Some(Ok(Plan::Stop)) => self.ending = Some(FinishReason::Stop),
            Some(Err(fault)) => {
                // Drafts may have been right before the fault.
                self.report();
                return self.finish(FinishReason::PluginError(fault));
            }
            // The row was sampled, so `choose` has replaced this.
            Some(Ok(Plan::Sample)) => {
                return self.finish(FinishReason::PluginError(Fault {
                    stage: "engine".into(),
                    kind: "internal",
                    message: "the position was planned and never sampled".into(),
                }));
            }
        }
        self.report();
    }

    fn accept(&mut self, tokens: &[TokenId]) {
        let generated = self.context.len() - self.prompt_len;
        let decided = commit(tokens, &self.end_ids, generated, self.max_tokens);
        self.context.extend_from_slice(&tokens[..decided.emitted]);
        self.ending = match decided.end {
            None => None,
            Some(End::Length) => Some(FinishReason::Length),
            Some(End::Stop) => Some(FinishReason::Stop),
        };
        if decided.end == Some(End::Stop) && self.logprobs.is_some() {
            self.context.push(tokens[decided.emitted]);
            self.ends_with_id = true;
        }
    }

    /// Hands out the tokens that are complete, and ends a sequence that has
    /// nothing left to hand out.
    fn report(&mut self) {
        let count = match self.logprobs {
            None => self.context.len() - self.reported,
            Some(_) => self.known.len(),
        };
        let end = self.reported + count;
        let text_end = self.context.len() - usize::from(self.ends_with_id);
        let prompt = self.take_tokens(end.min(self.prompt_len));
        let generated = self.take_tokens(end.min(text_end));
        let last = self.take_tokens(end).pop();
        let events = [
            (!prompt.is_empty()).then_some(Event::Prompt(prompt)),
            (!generated.is_empty()).then_some(Event::Tokens(generated)),
            last.map(Event::End),
        ];
        for event in events.into_iter().flatten() {
            if self.events.try_send(event).is_err() {
                return self.finish(FinishReason::Cancelled);
            }
        }
        if self.reported == self.context.len()
            && let Some(reason) = self.ending.take()
        {
            self.finish(reason);
        }
    }

    /// The unreported tokens before index `end`, with their logprobs.
    fn take_tokens(&mut self, end: usize) -> Vec<Token> {
        let tokens = self.context.get(self.reported..end).unwrap_or_default();
        self.reported += tokens.len();
        tokens
            .iter()
            .map(|&id| Token {
                id,
                logprobs: self.known.pop_front().flatten(),
            })
            .collect()
    }

    /// Ends the sequence and says so. A reader that is gone or too far behind
    /// sees its channel close instead.
    pub(super) fn finish(&mut self, reason: FinishReason) {
        let (accepted, rejected) = (self.drafter.n_accepted, self.drafter.n_rejected);
        if accepted + rejected > 0 {
            let _ = self.events.try_send(Event::Drafted { accepted, rejected });
        }
        let _ = self.events.try_send(Event::Finished(reason.clone()));
        self.finished = Some(reason);
    }

    /// The stages, to be closed where that hurts nobody; none if they plan:
    /// their thread closes them.
    pub(super) fn into_chain(self) -> Option<Box<dyn Chain>> {
        self.chain
    }
}
