//! The decoder: one thread that owns the model, batches the rows of all
//! running sequences and asks each row's [`Chain`] for its next token.
//!
//! The engine knows neither MLX nor WebAssembly nor text. It sees them through
//! two traits, [`Model`] and [`Chain`], so that all of it can be tested with
//! scripted ones ([`fake`]).
//!
//! A step ([`step`]) is: schedule rows, compute them while the token
//! processors plan, choose tokens from the logits, commit them.

mod chain;
mod commit;
mod draft;
pub mod fake;
mod handle;
mod histogram;
mod logprobs;
mod model;
mod planner;
mod prefixes;
mod scheduler;
mod sequence;
mod stats;
mod step;
#[cfg(test)]
mod tests;

pub use chain::{Chain, Fault, Plan, Presence};
pub use handle::{Handle, SpawnError, SubmitError, spawn};
pub use histogram::{Distribution, Histogram};
pub use logprobs::{LogprobOptions, Logprobs, LogprobsOf};
pub use model::{Model, ModelError, ModelInfo, Row};
pub use sequence::{EVENT_BUFFER, Event, FinishReason, Submission, Token};
pub use sluice_kernels::row::{Logits, LogitsRow};
pub use stats::{Phases, Stats, StepFigures, StepHistograms};

/// Index of a token in the model's vocabulary.
pub type TokenId = u32;

/// How much the engine takes on at once.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Most sequences in one batch.
    pub max_batch: usize,
    /// Most prompt tokens computed in one step, so that a long prompt does not
    /// stall the tokens of others.
    pub prefill_chunk: usize,
    /// Most sequences that wait for a place in the batch.
    pub max_waiting: usize,
    /// Most tokens, prompt and completion, that the KV cache holds at once.
    /// When running sequences come to need more, the youngest wait.
    pub kv_tokens: usize,
    /// Most memory of the KV cache that what finished sequences have computed
    /// may take, for prompts that begin alike; less while `kv_tokens` are
    /// needed. 0: nothing is kept.
    pub prefix_bytes: usize,
    /// Rows up to which a step is filled with drafts, tokens that would come
    /// next if the text repeated itself; 0: there are none. Where memory bounds
    /// the speed, some rows more take hardly longer.
    pub draft_rows: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_batch: 16,
            prefill_chunk: 256,
            max_waiting: 256,
            kv_tokens: 131_072,
            prefix_bytes: 1 << 30,
            draft_rows: 8,
        }
    }
}
