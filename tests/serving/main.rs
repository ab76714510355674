//! The real program on the default model, over HTTP: right answers, the same
//! ones alone and in company, plugins that come and go meanwhile, and starts,
//! kills and restarts.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod answers;
mod lifetime;
mod plugins;
#[path = "../support/server.rs"]
mod server;

use std::path::PathBuf;

pub fn in_repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(path)
}

pub fn component(path: &str) -> Vec<u8> {
    std::fs::read(in_repository(path)).unwrap()
}
