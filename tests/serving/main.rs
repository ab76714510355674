//! The real program on the default model, over HTTP: right answers, the same
//! ones alone and in company, plugins that come and go meanwhile, and starts,
//! kills and restarts.
#![allow(clippy::expect_used, clippy::unwrap_used, unreachable_pub)]

mod answers;
mod bench;
#[path = "../support/binary.rs"]
mod binary;
mod bombs;
mod environment;
mod events;
mod folder;
mod kills;
mod lifetime;
mod plugins;
#[cfg(target_os = "linux")]
#[path = "../support/process.rs"]
mod process;
#[cfg(target_os = "linux")]
mod quiet;
mod room;
#[path = "../support/server.rs"]
mod server;
#[cfg(target_os = "linux")]
mod soak;
mod traces;
mod values;
mod versions;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sluice::assemble::cache_folder;
use sluice::config::ModelConfig;
use sluice::mlx::default_model;

pub fn in_repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(path)
}

/// A test component.
pub fn guest(name: &str) -> Vec<u8> {
    component(&format!("tests/guests/dist/{name}.wasm"))
}

/// A folder for `--cache` beside the usual one, with what that has compiled;
/// the model stays in the usual one and is named by `--model`.
pub fn own_cache(folder: &Path) -> [OsString; 4] {
    // The shipped plugins are compiled then.
    server::Server::shared();
    let usual = cache_folder(&ModelConfig::default()).unwrap();
    let model = default_model::fetch(&usual, &mut |_| ()).unwrap();
    let plugins = folder.join("plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    for entry in std::fs::read_dir(usual.join("plugins")).unwrap().flatten() {
        let path = entry.path();
        if path
            .extension()
            .is_some_and(|end| end == "json" || end == "cwasm")
        {
            // Another process may remove one meanwhile.
            let _ = std::fs::copy(&path, plugins.join(entry.file_name()));
        }
    }
    [
        "--cache".into(),
        folder.into(),
        "--model".into(),
        model.into(),
    ]
}

pub fn component(path: &str) -> Vec<u8> {
    std::fs::read(in_repository(path)).unwrap()
}
