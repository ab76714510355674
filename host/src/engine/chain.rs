//! The stages that choose a sequence's tokens, as the engine sees them.

use std::sync::Arc;
use std::time::Duration;

use super::{LogitsRow, TokenId};

/// What the token processors decided about a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing: the position is sampled with [`Chain::finish`].
    Sample,
    /// These tokens, at least one, join the context instead.
    Force(Vec<TokenId>),
    /// The sequence ends here.
    Stop,
}

/// Why a chain cannot go on. Ends its own sequence and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stage `{stage}`: {message}")]
pub struct Fault {
    /// The stage at fault, as the request names it.
    pub stage: String,
    /// Stable kind of the fault, such as `deadline`, `trap`, `memory`,
    /// `invalid_edit`, `banned_token` or `all_banned`.
    pub kind: &'static str,
    /// One sentence for the plugin's author.
    pub message: String,
}

/// Says that somebody waits for the tokens of a request. When all its choices have
/// dropped theirs, a plan that still runs may end at once: it would be for nothing.
pub type Presence = Arc<()>;

/// The open stages of one sequence. The engine calls [`plan`](Self::plan) and
/// [`finish`](Self::finish) in turn for each position it samples; it does so
/// from threads with a stack large enough for guest code, never two at once.
/// Dropping a chain closes its stages.
pub trait Chain: Send {
    /// Asks the token processors about the next position. `accepted` holds
    /// the tokens that joined the context since the last call, the newest
    /// included; none on the first. Needs no logits, so it runs while they are
    /// computed.
    ///
    /// # Errors
    /// The fault of the stage that failed.
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault>;

    /// The same for a plan that `waited` for its turn: part of its limit where it may be
    /// late, and where a step waits for it no longer than that limit either.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    fn plan_after(&mut self, waited: Duration, accepted: &[TokenId]) -> Result<Plan, Fault> {
        let _ = waited;
        self.plan(accepted)
    }

    /// Chooses the token of the position that the last `plan` left to be
    /// sampled: applies its edits to `row`, runs the logits processors and
    /// the sampler. `row` is the model's logits row; it may be changed.
    ///
    /// # Errors
    /// The fault of the stage that failed, or of a row with nothing left to
    /// sample.
    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault>;

    /// [`finish`](Self::finish) for whoever has the values of a row alone.
    ///
    /// # Errors
    /// As `finish`.
    fn finish_values(&mut self, row: &mut [f32]) -> Result<TokenId, Fault> {
        self.finish(&mut LogitsRow::new(row, &mut Vec::new()))
    }

    /// What the sampler took of the last `finish`.
    fn sample_time(&self) -> Duration {
        Duration::ZERO
    }

    /// How long a step waits for a plan before it goes on without the
    /// sequence, which joins again when its plan is there; None: as long as the
    /// plan takes.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Whether its plans need what those of the other choices of its request need, so
    /// that they can only be made one after the other.
    fn shares_plans(&self) -> bool {
        true
    }

    /// What is to be held as long as somebody waits for the chain's tokens. Asked
    /// for once.
    fn take_presence(&mut self) -> Option<Presence> {
        None
    }
}
