use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::{OpenError, TokenId};

/// What a plugin says of itself. Checked when the component is uploaded.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Lower-case letters, digits and dashes.
    pub name: &'static str,
    /// Semantic version.
    pub version: &'static str,
    /// One sentence.
    pub summary: &'static str,
}

/// What a sequence knows when it opens, beside its parameters.
#[derive(Clone, Debug)]
pub struct SequenceInfo {
    /// The tokens that the model is conditioned on.
    pub prompt: Vec<TokenId>,
    /// The most tokens that this sequence may generate.
    pub max_tokens: u32,
    /// Every id that ends this sequence: the model's and the request's.
    pub end_ids: Vec<TokenId>,
}

/// What every kind of plugin has. A value is the state of one sequence.
pub trait Plugin: Sized + 'static {
    /// The request's parameters. Their [schema](crate::schema()) is derived,
    /// and the host checks them against it before the request starts and names
    /// the member at fault: a doc comment describes a member,
    /// `#[schemars(range(min = 0, max = 1))]` bounds it, `#[serde(default)]`
    /// makes it optional. `#[serde(deny_unknown_fields)]` refuses other members.
    type Params: DeserializeOwned + JsonSchema;

    /// Name, version, summary. Runs at upload, without a model.
    fn describe() -> Description;

    /// Builds what depends on the vocabulary alone, before any sequence opens.
    /// The host may keep the memory this leaves and start every instance from
    /// it, so keep the result in a static.
    fn prepare() {}

    /// Opens a sequence.
    ///
    /// # Errors
    /// `InvalidParams` for what the schema cannot express: the request is
    /// answered with a 400 that shows the message. `Failed` for the rest.
    fn open(params: Self::Params, sequence: SequenceInfo) -> Result<Self, OpenError>;
}

/// Decides from tokens alone.
pub trait TokenProcessor: Plugin {
    /// Makes this position's edits through [`edits`](crate::edits), or decides
    /// it through [`control`](crate::control).
    ///
    /// `accepted` holds the tokens generated since the last call, the newest
    /// included. State may depend only on all of them in order, never on how
    /// they were split over calls nor on what earlier calls decided.
    ///
    /// # Errors
    /// Ends the sequence, or skips this stage, as the request says.
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String>;
}

/// Reads the logits and changes them.
pub trait LogitsProcessor: Plugin {
    /// Changes the row through [`edits`](crate::edits), or returns a new row
    /// of the same length, not both. `accepted` as in [`TokenProcessor`].
    ///
    /// # Errors
    /// Ends the sequence.
    fn process(&mut self, accepted: &[TokenId]) -> Result<Option<Vec<f32>>, String>;
}

/// Picks the token.
pub trait Sampler: Plugin {
    /// Picks one token that is not banned. Reads the row through
    /// [`logits`](crate::logits) and chance through [`random`](crate::random).
    /// `accepted` as in [`TokenProcessor`].
    ///
    /// # Errors
    /// Ends the sequence.
    fn sample(&mut self, accepted: &[TokenId]) -> Result<TokenId, String>;
}
