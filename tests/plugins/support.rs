//! A runtime, a registry and a small vocabulary that the tests share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;
use sluice::engine::{Chain, ModelInfo, TokenId};
use sluice::plugin::{
    Breaker, Choices, Compiler, Limits, OpenError, Plugin, Registry, Runtime, STACK_BYTES,
    SequenceInfo, StageRef, Vocabulary, check_chain,
};

/// Ids from here up are padding.
pub(crate) const TOKENIZER_SIZE: u32 = 60;
/// Width of a row.
pub(crate) const VOCABULARY_SIZE: u32 = 64;
/// The id that ends a sequence.
pub(crate) const END_ID: TokenId = 2;

/// Deadlines long enough for a busy machine.
pub(crate) fn limits() -> Limits {
    Limits {
        max_instances: 64,
        call: Duration::from_secs(1),
        wait: Duration::ZERO,
        // These tests commit more faults than any plugin may.
        breaker: Breaker {
            faults: 0,
            ..Breaker::default()
        },
        ..Limits::default()
    }
}

pub(crate) fn runtime() -> &'static Arc<Runtime> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new(limits()).unwrap())
}

/// The registry whose plugins [`plugin`] finds.
fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| Registry::new(Arc::clone(runtime()), compiler()))
}

/// A compiler with a directory of its own.
pub(crate) fn compiler() -> Compiler {
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_sluice"));
    let cache = tempfile::tempdir().unwrap().keep();
    Compiler::new(executable, &cache).unwrap()
}

/// The bytes of a committed component, a default plugin's or a test's.
pub(crate) fn component(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let file = |directory: &str| root.join(directory).join(format!("{name}.wasm"));
    std::fs::read(file("tests/guests/dist"))
        .or_else(|_| std::fs::read(file("plugins/dist")))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A committed component as a plugin.
pub(crate) fn plugin(name: &str) -> Arc<Plugin> {
    registry().upload(&component(name)).unwrap().plugin
}

/// A vocabulary of single letters; id 2 ends.
pub(crate) fn vocabulary() -> Arc<Vocabulary> {
    let info = ModelInfo {
        vocabulary_size: VOCABULARY_SIZE,
        tokenizer_size: TOKENIZER_SIZE,
        end_of_sequence: vec![END_ID],
        context_length: 128,
    };
    let n_with_bytes = TOKENIZER_SIZE;
    let offsets = (0..=VOCABULARY_SIZE).map(|i| i.min(n_with_bytes)).collect();
    let bytes = (0..n_with_bytes as u8).map(|i| b'A' + i).collect();
    let encode = Box::new(|text: &str| text.bytes().map(|byte| u32::from(byte - b'A')).collect());
    Arc::new(Vocabulary::new(info, offsets, bytes, Vec::new(), encode).unwrap())
}

/// What sequences are told in these tests.
pub(crate) fn info() -> SequenceInfo {
    SequenceInfo {
        prompt: vec![5, 9, 5],
        max_tokens: 32,
        end_ids: vec![END_ID],
    }
}

/// A stage with validated parameters.
pub(crate) fn stage(name: &str, params: Value) -> StageRef {
    stage_in(registry(), name, params)
}

/// The same in a registry of the test's own.
pub(crate) fn stage_in(registry: &Registry, name: &str, params: Value) -> StageRef {
    stage_of(registry.upload(&component(name)).unwrap().plugin, params)
}

/// The same of a plugin that is there.
pub(crate) fn stage_of(plugin: Arc<Plugin>, params: Value) -> StageRef {
    plugin.validate_params(&params).unwrap();
    let Value::Object(params) = params else {
        panic!("{params} is not an object");
    };
    StageRef::new(plugin, params)
}

/// Opens a chain for each choice.
pub(crate) fn open_choices(
    stages: &[StageRef],
    seed: i64,
    n_choices: u32,
) -> Result<Vec<Box<dyn Chain>>, OpenError> {
    check_chain(stages).unwrap();
    let choices = Choices {
        n: n_choices,
        seed,
        explain: false,
    };
    let chains = runtime().open(&vocabulary(), stages, &info(), choices)?;
    let boxed = |chain| Box::new(chain) as Box<dyn Chain>;
    Ok(chains.into_iter().map(boxed).collect())
}

/// One choice.
pub(crate) const ONE: Choices = Choices {
    n: 1,
    seed: 0,
    explain: false,
};

/// Opens a chain for one choice.
pub(crate) fn open(stages: &[StageRef]) -> Result<Box<dyn Chain>, OpenError> {
    open_choices(stages, 0, 1).map(|mut chains| chains.remove(0))
}

/// A row whose best token is `best`; the others descend from id 0.
pub(crate) fn row(best: TokenId) -> Vec<f32> {
    let mut row: Vec<f32> = (0..VOCABULARY_SIZE).map(|id| -(id as f32) / 8.0).collect();
    row[best as usize] = 10.0;
    row
}

/// Runs a test on a thread that may call guests.
pub(crate) fn on_guest_thread(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(test)
        .unwrap();
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
