//! What several of the promise tests need: a registry with the shipped
//! components, and test components from `tests/guests/dist`.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use sluice::{
    engine::{Chain, ModelInfo, TokenId},
    plugin::{
        Choices, Compiler, Limits, OpenError, Plugin, Registry, Runtime, SequenceInfo, StageRef,
        Vocabulary,
    },
};
use std::{path::PathBuf, sync::Arc};

/// The project's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The plugins that the server brings along, without `grammar`, which reads
/// a vocabulary of real text.
pub const SHIPPED: [&str; 6] = [
    "rules",
    "penalties",
    "dry",
    "sampler",
    "mirostat",
    "adaptive-p",
];

pub fn shipped(name: &str) -> Vec<u8> {
    std::fs::read(root().join(format!("plugins/dist/{name}.wasm"))).unwrap()
}

pub fn test_guest(name: &str) -> Vec<u8> {
    std::fs::read(root().join(format!("tests/guests/dist/{name}.wasm"))).unwrap()
}

/// A runtime and its registry, with the default plugins uploaded.
pub struct Plugins {
    pub runtime: Arc<Runtime>,
    pub registry: Registry,
    _cache: tempfile::TempDir,
}

impl Plugins {
    pub fn new(components: &[Vec<u8>]) -> Self {
        Self::with_limits(Limits::default(), components)
    }

    pub fn with_limits(limits: Limits, components: &[Vec<u8>]) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let runtime = Runtime::new(limits).unwrap();
        let compiler =
            Compiler::new(env!("CARGO_BIN_EXE_sluice").into(), &cache.path().join("c")).unwrap();
        let registry = Registry::new(runtime.clone(), compiler);
        for component in components {
            registry.upload(component).unwrap();
        }
        Self {
            runtime,
            registry,
            _cache: cache,
        }
    }

    pub fn shipped() -> Self {
        Self::new(&SHIPPED.map(shipped))
    }

    pub fn get(&self, name: &str) -> Arc<Plugin> {
        self.registry.get(name).unwrap()
    }

    /// A stage; its parameters are validated as a request's would be.
    pub fn stage(&self, name: &str, params: serde_json::Value) -> Result<StageRef, String> {
        let plugin = self.get(name);
        plugin
            .validate_params(&params)
            .map_err(|e| format!("{}: {}", e.pointer, e.message))?;
        let serde_json::Value::Object(params) = params else {
            return Err("params are not an object".into());
        };
        Ok(StageRef::new(plugin, params))
    }

    pub fn open(
        &self,
        vocabulary: &Arc<Vocabulary>,
        stages: &[StageRef],
        info: &SequenceInfo,
        seed: i64,
    ) -> Result<Box<dyn Chain>, OpenError> {
        let choices = Choices {
            n: 1,
            seed,
            explain: false,
        };
        self.runtime
            .open(vocabulary, stages, info, choices)
            .map(|mut chains| Box::new(chains.remove(0)) as Box<dyn Chain>)
    }
}

/// A vocabulary of `size` tokens whose bytes are the decimal id.
pub fn numbered_vocabulary(size: u32, end_of_sequence: Vec<TokenId>) -> Arc<Vocabulary> {
    let mut offsets = vec![0];
    let mut bytes = Vec::new();
    for id in 0..size {
        bytes.extend(id.to_string().bytes());
        offsets.push(bytes.len() as u32);
    }
    let info = ModelInfo {
        vocabulary_size: size,
        tokenizer_size: size,
        end_of_sequence,
        context_length: 4096,
    };
    Arc::new(Vocabulary::new(info, offsets, bytes, vec![], Box::new(|_| vec![])).unwrap())
}

/// Philox4x32-10 from its publication (Salmon et al., 2011), written here so
/// that the host's is checked by something else.
pub fn uniform(seed: i64, position: u32, choice: u32, draw: u32, lane: u32) -> f64 {
    let mut key = [seed as u64 as u32, (seed as u64 >> 32) as u32];
    let mut x = [position, choice, draw, lane];
    for _ in 0..10 {
        let a = u64::from(x[0]) * 0xD251_1F53;
        let b = u64::from(x[2]) * 0xCD9E_8D57;
        x = [
            (b >> 32) as u32 ^ x[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ x[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    let bits = u64::from(x[0]) << 32 | u64::from(x[1]);
    (bits >> 11) as f64 * 2f64.powi(-53)
}
