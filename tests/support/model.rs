//! The default model's files, fetched as the server fetches them.
#![allow(unreachable_pub, clippy::unwrap_used)]

use sluice::{
    assemble::cache_folder,
    config::ModelConfig,
    mlx::{Checkpoint, default_model},
};

pub fn checkpoint() -> Checkpoint {
    let cache = cache_folder(&ModelConfig::default()).unwrap();
    Checkpoint::open(&default_model::fetch(&cache, &mut |_| ()).unwrap()).unwrap()
}
