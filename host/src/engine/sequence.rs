//! One stream of tokens, from submission to its last event.

use super::{Chain, Fault, Plan, TokenId, commit::End};
use tokio::sync::mpsc;

/// Events that may lie unread before a reader counts as gone.
pub const EVENT_BUFFER: usize = 1024;

/// A sequence to generate. The engine checks nothing that the caller could
/// have refused with a better message, except what would break it.
pub struct Submission {
    /// Exactly the tokens to condition on; at least one.
    pub prompt: Vec<TokenId>,
    /// The most tokens to generate, at least 1; prompt and completion together
    /// fit the model's context.
    pub max_tokens: u32,
    /// Every id that ends the sequence: the model's and the request's.
    pub end_ids: Vec<TokenId>,
    /// The open stages that choose its tokens.
    pub chain: Box<dyn Chain>,
    /// Where its events go; [`EVENT_BUFFER`] is a good size. Dropping the
    /// receiver cancels the sequence, and so does falling a whole buffer
    /// behind.
    pub events: mpsc::Sender<Event>,
}

/// What happens to a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Tokens that joined the context, at least one; an end id never does.
    Tokens(Vec<TokenId>),
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

/// What a step found out about a sequence's next position.
pub(super) enum Outcome {
    Tokens(Vec<TokenId>),
    Stop,
    Fault(Fault),
}

pub(super) struct Sequence {
    chain: Box<dyn Chain>,
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
    /// Tokens that this step computes.
    scheduled: usize,
    pub(super) slot: u32,
    plan: Option<Result<Plan, Fault>>,
    pub(super) finished: Option<FinishReason>,
}

impl Sequence {
    pub(super) fn new(submission: Submission) -> Self {
        let prompt_len = submission.prompt.len();
        Self {
            chain: submission.chain,
            events: submission.events,
            end_ids: submission.end_ids,
            max_tokens: submission.max_tokens as usize,
            context: submission.prompt,
            prompt_len,
            computed: 0,
            told: prompt_len,
            scheduled: 0,
            slot: 0,
            plan: None,
            finished: None,
        }
    }

    /// Most tokens it can come to hold.
    pub(super) fn capacity(&self) -> usize {
        self.prompt_len + self.max_tokens
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }

    /// Tokens that must be computed before the next position can be sampled.
    pub(super) fn pending(&self) -> &[TokenId] {
        &self.context[self.computed..]
    }

    pub(super) fn computed(&self) -> usize {
        self.computed
    }

    /// Takes the first `count` pending tokens into this step.
    pub(super) fn schedule(&mut self, count: usize) {
        self.scheduled = count;
    }

    /// Whether this step computes everything that is pending, so that the
    /// next position can be decided.
    pub(super) fn samples(&self) -> bool {
        self.scheduled > 0 && self.computed + self.scheduled == self.context.len()
    }

    pub(super) fn plan(&mut self) {
        self.plan = Some(self.chain.plan(&self.context[self.told..]));
        self.told = self.context.len();
    }

    /// Whether the planned position is left to be sampled.
    pub(super) fn wants_finish(&self) -> bool {
        matches!(self.plan, Some(Ok(Plan::Sample)))
    }

    /// Replaces the plan by the token that the chain chooses.
    pub(super) fn choose(&mut self, row: &mut [f32]) {
        self.plan = Some(self.chain.finish(row).map(|token| Plan::Force(vec![token])));
    }

    /// Fails the position, whatever was planned.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.plan = Some(Err(fault));
    }

    /// Ends the step: counts what was computed and hands out what was decided.
    pub(super) fn commit(&mut self) {
        self.computed += std::mem::take(&mut self.scheduled);
        let outcome = match self.plan.take() {
            None => return,
            Some(Ok(Plan::Force(tokens))) => Outcome::Tokens(tokens),
            Some(Ok(Plan::Stop)) => Outcome::Stop,
            Some(Err(fault)) => Outcome::Fault(fault),
            // The row was sampled, so `choose` has replaced this.
            Some(Ok(Plan::Sample)) => Outcome::Fault(Fault {
                stage: "engine".into(),
                kind: "internal",
                message: "the position was planned and never sampled".into(),
            }),
        };
        match outcome {
            Outcome::Tokens(tokens) => self.accept(tokens),
            Outcome::Stop => self.finish(FinishReason::Stop),
            Outcome::Fault(fault) => self.finish(FinishReason::PluginError(fault)),
        }
    }

    fn accept(&mut self, mut tokens: Vec<TokenId>) {
        let generated = self.context.len() - self.prompt_len;
        let decided = super::commit::commit(&tokens, &self.end_ids, generated, self.max_tokens);
        tokens.truncate(decided.emitted);
        if !tokens.is_empty() {
            self.context.extend_from_slice(&tokens);
            if self.events.try_send(Event::Tokens(tokens)).is_err() {
                return self.finish(FinishReason::Cancelled);
            }
        }
        match decided.end {
            Some(End::Stop) => self.finish(FinishReason::Stop),
            Some(End::Length) => self.finish(FinishReason::Length),
            None => {}
        }
    }

    /// Ends the sequence and says so. A reader that is gone or too far behind
    /// sees its channel close instead.
    pub(super) fn finish(&mut self, reason: FinishReason) {
        let _ = self.events.try_send(Event::Finished(reason.clone()));
        self.finished = Some(reason);
    }

    /// The stages, to be closed where that hurts nobody.
    pub(super) fn into_chain(self) -> Box<dyn Chain> {
        self.chain
    }
}
