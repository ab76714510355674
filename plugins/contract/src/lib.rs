//! What the contract `sluice:sampling` means, without a runtime.
//!
//! The server and the native harness of the plugin SDK both use this, so that
//! a plugin under `cargo test` and the same plugin as a component do the same:
//!
//! - [`edits`]: what a stage's edits do to a row, and which are refused
//! - [`chance`]: the bits that a plugin gets
//! - [`phase`]: the calls of a guest, and which imports it may use in them
//! - [`cases`]: worked cases, their format and how they are compared

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "tests"))]

pub mod cases;
pub mod chance;
pub mod edits;
pub mod phase;

/// Index of a token in the model's vocabulary.
pub type TokenId = u32;
