//! Where a plugin runs without a server: the server's runtime, its compiler
//! with a cache that is thrown away, and a sampler for plugins that are none.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tempfile::TempDir;

use super::{AuthorError, SLOW_BYTES};
use crate::assemble;
use crate::plugin::{
    Breaker, Choices, Compiler, Kind, Limits, OnFault, OpenChain, OpenError, Plugin, Registry,
    Runtime, SequenceInfo, StageRef, Vocabulary,
};

/// The sampler that a chain ends in where the plugin is none.
const SAMPLER: &str = "sampler";

pub(super) struct Workbench {
    runtime: Arc<Runtime>,
    cache: TempDir,
}

impl Workbench {
    /// Calls may take many times what a server gives them by default, so that a
    /// busy machine is not taken for a slow plugin.
    pub(super) fn new() -> Result<Self, AuthorError> {
        let defaults = Limits::default();
        let limits = Limits {
            max_instances: 160,
            call: Duration::from_secs(3),
            open: Duration::from_secs(20),
            prepare: Duration::from_mins(1),
            total_memory_bytes: defaults.memory_bytes * 160,
            breaker: Breaker {
                faults: 0,
                ..defaults.breaker
            },
            ..defaults
        };
        Ok(Self {
            runtime: Runtime::new(limits)?,
            cache: tempfile::tempdir().map_err(AuthorError::Temporary)?,
        })
    }

    pub(super) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Takes a component as a server would, but with the patience it has for its
    /// own: that the machine is busy is no fault of the plugin's. Processor time
    /// and memory are limited as ever.
    pub(super) fn load(&self, bytes: &[u8]) -> Result<Arc<Plugin>, AuthorError> {
        if bytes.len() > SLOW_BYTES {
            eprintln!("compiling; an interpreter takes half a minute and more");
        }
        let executable = std::env::current_exe().map_err(AuthorError::Temporary)?;
        let compiler = Compiler::new(executable, self.cache.path())?;
        // Of its own: what others are named is of no concern.
        let registry = Registry::new(Arc::clone(&self.runtime), compiler);
        Ok(registry.upload_builtin(bytes)?.plugin)
    }

    /// The chain of one plugin: itself, and a greedy sampler where it is none.
    pub(super) fn chain(
        &self,
        plugin: &Arc<Plugin>,
        params: &Map<String, Value>,
    ) -> Result<Stages, AuthorError> {
        let mut stages = vec![stage(plugin, params)?];
        if plugin.kind != Kind::Sampler {
            stages.push(self.greedy()?);
        }
        Ok(Stages(stages))
    }

    /// The shipped sampler at temperature 0.
    pub(super) fn greedy(&self) -> Result<StageRef, AuthorError> {
        let bytes = assemble::builtin(SAMPLER).unwrap_or_default();
        let mut params = Map::new();
        params.insert("temperature".to_owned(), 0.into());
        stage(&self.load(bytes)?, &params)
    }

    /// Opens a chain, of `n` sequences in the same instances.
    pub(super) fn open(
        &self,
        vocabulary: &Arc<Vocabulary>,
        stages: &Stages,
        info: &SequenceInfo,
        choices: Choices,
    ) -> Result<Vec<OpenChain>, OpenError> {
        self.runtime.open(vocabulary, &stages.0, info, choices)
    }
}

/// The stages of a chain, their params checked.
pub(super) struct Stages(pub(super) Vec<StageRef>);

/// A stage with its params checked, as a request's are.
fn stage(plugin: &Arc<Plugin>, params: &Map<String, Value>) -> Result<StageRef, AuthorError> {
    plugin
        .validate_params(&Value::Object(params.clone()))
        .map_err(|error| AuthorError::Params {
            plugin: plugin.name.clone(),
            pointer: error.pointer,
            message: error.message,
        })?;
    Ok(StageRef {
        plugin: Arc::clone(plugin),
        params: params.clone(),
        on_fault: OnFault::Fail,
    })
}

/// An object of parameters on the command line.
pub(super) fn parse_params(text: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(params)) => Ok(params),
        Ok(_) => Err("it is no JSON object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
