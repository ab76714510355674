//! The plugin runtime: strangers' components choose the tokens of a request,
//! and can hurt that request alone.
//!
//! ```text
//! upload ─ compile (child process: componentise, compile, describe, snapshot) ─ cache
//!        ─ registry ─ Plugin
//! request ─ check_chain, validate_params ─ Runtime::open ─ one instance per stage
//!         ─ engine::Chain: plan (token processors) ─ finish (edits, logits processors, sampler)
//! ```
//!
//! What must stay absent: an import that reaches anything but the contract's (WASI
//! is linked with nothing in it), a parser of uploads in the server's process,
//! guest code on a thread with a small stack, guest code in a `Drop`, a second
//! configuration of wasmtime.
//!
//! Every call of a guest has a deadline ([`Limits`]); every value that comes
//! out of one is checked before it is used. What goes wrong in a guest is a
//! [`Fault`](crate::engine::Fault) of its sequence.

mod bindings;
mod cache;
mod chain;
mod child;
mod compile;
mod crossed;
mod deadline;
mod edits;
mod fault;
mod folder;
mod host;
mod inspect;
mod instance;
mod loaded;
mod memory;
mod named;
mod open;
mod pool;
mod record;
mod registry;
mod report;
mod runtime;
mod schema;
mod snapshot;
mod stage;
mod stages;
mod state;
mod store;
mod upload;
mod vocabulary;
mod vocabulary_file;
mod wasi;

pub(crate) use cache::sha256;
pub use chain::OpenChain;
pub use child::{CompileTask, compile_child};
pub use compile::Compiler;
pub use crossed::Crossed;
pub use folder::Folder;
pub use inspect::{Interfaces, component, interfaces};
pub use loaded::{Kind, ParamsError, Plugin};
pub use open::{Choices, OpenError, OpeningBudget, Reserved, SequenceInfo};
pub use record::{Breaker, LogLine, Work};
pub use registry::{Registry, RemoveError, Uploaded};
pub use report::{Change, Choice, Did, Effect, Explanation, Moved, Report, StageReport};
pub use runtime::{Limits, Runtime, RuntimeError, STACK_BYTES};
pub use schema::ParamsSchema;
pub use stages::{
    ChainError, OnFault, StageRef, check_chain, n_instances, n_instances_of_one, stage_names,
};
pub use store::{Store, StoreError};
pub use upload::{UploadCode, UploadError};
pub use vocabulary::{Encode, Vocabulary, VocabularyError};
