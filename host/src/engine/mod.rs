//! The decoder: one thread that owns the model, batches the rows of all
//! running sequences and asks each row's [`Chain`] for its next token.
//!
//! The engine knows neither MLX nor WebAssembly nor text. It sees them through
//! two traits, [`Model`] and [`Chain`], so that all of it can be tested with
//! scripted ones.

mod chain;
mod model;

pub use chain::{Chain, Fault, Plan};
pub use model::{Model, ModelError, ModelInfo, Row};

/// Index of a token in the model's vocabulary.
pub type TokenId = u32;
