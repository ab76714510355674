//! A plugin can hurt only its own request: the runtime with real components,
//! through [`sluice::engine::Chain`].

#![allow(clippy::expect_used, clippy::unwrap_used)]

#[path = "../support/binary.rs"]
mod binary;
mod chain;
mod faults;
mod grammar;
mod late;
mod native;
mod room;
mod snapshots;
mod store;
mod support;
mod uploads;
mod wasi;
