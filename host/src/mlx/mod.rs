//! Models on MLX: from files to logits.
//!
//! [`ModelSource::fetch`] finds a model's files, or fetches them;
//! [`Checkpoint::open`] reads what they say and checks it; [`load`] reads the
//! weights and gives a [`Model`](crate::engine::Model). The checkpoint also
//! holds what text needs: tokenizer, chat template, ends.
//!
//! ```text
//! GGUF file ──── gguf ───┐                                   ┌─ operations::host ─ sluice-kernels
//!                        ├─ Checkpoint ─ families ─ decoder ─┤
//! folder ─────── folder ─┘      weights                      └─ operations::plain ─ MLX alone
//! ```
//!
//! A family says what its configuration means; the decoder computes it, layer by
//! layer with [`Operations`]: on the CPU functions of `sluice-kernels`, run by MLX
//! in its stream, which read the weights of each [`Matrix`] as they are; on a GPU
//! MLX's own. One thread loads a
//! model and uses it, for MLX's streams belong to threads. Nothing here knows
//! of text, HTTP or plugins, and nothing trusts a file: MLX reads beyond the
//! end of a short one.
//!
//! [`Matrix`]: matrix::Matrix
//! [`Operations`]: operations::Operations

mod backend;
mod checkpoint;
pub mod default_model;
mod digest;
mod error;
mod extents;
mod families;
mod folder;
mod gguf;
mod gguf_blocks;
mod gguf_header;
mod gguf_tensors;
mod hub;
mod matrix;
mod operations;
mod rope;
mod safetensors;
mod settings;
mod source;
mod weights;

#[cfg(test)]
mod tests;

/// The version of libmlx that this is linked to.
pub const VERSION: &str = env!("SLUICE_MLX_VERSION");

pub use backend::Backend;
pub use checkpoint::{Checkpoint, GgufTokenizer, Progress, TokenizerData};
pub use error::LoadError;
pub use extents::tensor_extents;
pub use families::load;
pub use hub::{Hub, HubModel};
pub use source::{ModelSource, Shelf};
