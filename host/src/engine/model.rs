//! The forward pass, as the engine sees it.

use super::{Logits, TokenId};

/// Facts about a model that never change while it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Width of a logits row.
    pub vocabulary_size: u32,
    /// Number of ids the tokenizer knows. Ids from here up to
    /// `vocabulary_size` are padding and stay banned.
    pub tokenizer_size: u32,
    /// Every id by which the model ends a sequence, ascending.
    pub end_of_sequence: Vec<TokenId>,
    /// Longest prompt plus completion, in tokens.
    pub context_length: u32,
}

/// One token to compute: prefill and decode rows look the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token itself.
    pub token: TokenId,
    /// Its index in the context, from 0.
    pub position: u32,
    /// Which KV cache it belongs to: any number, new ones begin empty.
    pub slot: u32,
    /// Whether the logits that follow this token are needed.
    pub wants_logits: bool,
}

/// The model can no longer compute. Every sequence ends with it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ModelError(pub String);

/// Computes logits. Made and used on the engine's thread alone.
pub trait Model {
    /// Width of a logits row.
    fn vocabulary_size(&self) -> usize;

    /// Computes `rows` and remembers their keys and values. Rows of one slot
    /// stand in ascending, gapless order of position, after everything
    /// computed for that slot before. Returns when the logits are computed.
    ///
    /// # Errors
    /// When the model is lost; the engine then stops.
    fn forward(&mut self, rows: &[Row]) -> Result<(), ModelError>;

    /// The logits of the last [`forward`](Self::forward): one row of
    /// [`vocabulary_size`](Self::vocabulary_size) values for each row that
    /// wanted them, in order, free to be changed in place. A model whose
    /// logits live on a device brings them to host memory here. What it does
    /// not know of their blocks, it leaves unknown: [`Logits::replace`].
    fn logits(&mut self) -> &mut Logits;

    /// Bytes that the keys and values of one position take.
    fn bytes_per_position(&self) -> usize;

    /// Lets `slot`, which holds nothing, begin with the first `n_positions`
    /// that `from` holds. Both go on independently.
    fn share(&mut self, from: u32, slot: u32, n_positions: u32);

    /// Forgets a slot's keys and values.
    fn release(&mut self, slot: u32);
}
