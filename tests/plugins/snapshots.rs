//! Plugins that are prepared once for all instances, and code that outlives
//! the process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sluice::engine::{Chain, ModelInfo, Plan, TokenId};
use sluice::plugin::{Compiler, OpenError, Registry, Runtime, StageRef, Vocabulary};

use crate::support::{
    END_ID, ONE, TOKENIZER_SIZE, VOCABULARY_SIZE, component, info, limits, on_guest_thread,
    vocabulary,
};

/// A cache whose compilers are counted: their executable is a script that
/// notes each run.
struct CountedCache {
    directory: tempfile::TempDir,
    executable: PathBuf,
}

impl CountedCache {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let executable = directory.path().join("compile");
        let script = format!(
            "#!/bin/sh\necho run >> '{}'\nexec '{}' \"$@\"\n",
            directory.path().join("runs").display(),
            env!("CARGO_BIN_EXE_sluice"),
        );
        fs::write(&executable, script).unwrap();
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o700)).unwrap();
        Self {
            directory,
            executable,
        }
    }

    /// A registry of a new server.
    fn registry(&self, runtime: &Arc<Runtime>, vocabulary: Option<&Vocabulary>) -> Registry {
        let compiler = Compiler::new(self.executable.clone(), self.directory.path()).unwrap();
        let compiler = match vocabulary {
            Some(vocabulary) => compiler.with_vocabulary(vocabulary).unwrap(),
            None => compiler,
        };
        Registry::new(Arc::clone(runtime), compiler)
    }

    fn n_runs(&self) -> usize {
        let runs = fs::read_to_string(self.directory.path().join("runs")).unwrap_or_default();
        runs.lines().count()
    }

    fn files(&self, extension: &str) -> Vec<PathBuf> {
        fs::read_dir(self.directory.path().join("plugins"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|other| other == extension))
            .collect()
    }
}

/// A vocabulary that differs in one fact.
fn other_vocabulary() -> Arc<Vocabulary> {
    let info = ModelInfo {
        vocabulary_size: VOCABULARY_SIZE,
        tokenizer_size: TOKENIZER_SIZE,
        end_of_sequence: vec![END_ID],
        context_length: 129,
    };
    let offsets = (0..=VOCABULARY_SIZE)
        .map(|i| i.min(TOKENIZER_SIZE))
        .collect();
    let bytes = (0..TOKENIZER_SIZE as u8).map(|i| b'A' + i).collect();
    let encode = Box::new(|_: &str| Vec::new());
    Arc::new(Vocabulary::new(info, offsets, bytes, Vec::new(), encode).unwrap())
}

fn open(
    runtime: &Arc<Runtime>,
    registry: &Registry,
    vocabulary: &Arc<Vocabulary>,
    name: &str,
    params: &Value,
) -> Result<Box<dyn Chain>, OpenError> {
    let stage = |name: &str, params: &Map<String, Value>| {
        let plugin = registry.upload_builtin(&component(name)).unwrap().plugin;
        StageRef::new(plugin, params.clone())
    };
    let greedy = json!({"temperature": 0});
    let stages = [
        stage(name, params.as_object().unwrap()),
        stage("sampler", greedy.as_object().unwrap()),
    ];
    let mut chains = runtime.open(vocabulary, &stages, &info(), ONE)?;
    Ok(Box::new(chains.remove(0)))
}

/// What a choice of words leaves at first, and after an `a`.
fn masks(
    runtime: &Arc<Runtime>,
    registry: &Registry,
    vocabulary: &Arc<Vocabulary>,
) -> Result<[Vec<TokenId>; 2], OpenError> {
    let params = json!({"choice": ["ab", "a", "Z"]});
    let mut chain = open(runtime, registry, vocabulary, "grammar", &params)?;
    let a = u32::from(b'a' - b'A');
    Ok([&[][..], &[a]].map(|accepted| {
        assert_eq!(chain.plan(accepted).unwrap(), Plan::Sample);
        let mut row = vec![0.0; VOCABULARY_SIZE as usize];
        chain.finish_values(&mut row).unwrap();
        (0..VOCABULARY_SIZE)
            .filter(|&id| row[id as usize] == 0.0)
            .collect()
    }))
}

/// The ids of Z and a; then of the end and b.
const MASKS: [[TokenId; 2]; 2] = [[25, 32], [END_ID, 33]];

#[test]
fn a_snapshot_opens_as_its_vocabulary_asks_and_with_no_other() {
    on_guest_thread(|| {
        let runtime = Runtime::new(limits()).unwrap();
        let cache = CountedCache::new();
        let registry = cache.registry(&runtime, Some(&vocabulary()));
        for _ in 0..2 {
            assert_eq!(masks(&runtime, &registry, &vocabulary()).unwrap(), MASKS);
        }
        // The grammar took two runs: its `prepare` reads the vocabulary.
        assert_eq!(cache.n_runs(), 3);
        match masks(&runtime, &registry, &other_vocabulary()) {
            Err(OpenError::Fault(fault)) => {
                assert_eq!((fault.stage.as_str(), fault.kind), ("grammar", "open"));
            }
            Err(error) => panic!("{error}"),
            Ok(masks) => panic!("{masks:?}"),
        }
        // Without one, each instance prepares itself.
        let registry = cache.registry(&runtime, None);
        for vocabulary in [vocabulary(), other_vocabulary()] {
            assert_eq!(masks(&runtime, &registry, &vocabulary).unwrap(), MASKS);
        }
        assert_eq!(cache.n_runs(), 5);
    });
}

#[test]
fn a_prepare_that_fails_is_the_requests_fault_still() {
    on_guest_thread(|| {
        let runtime = Runtime::new(limits()).unwrap();
        let cache = CountedCache::new();
        let registry = cache.registry(&runtime, Some(&vocabulary()));
        let error = open(
            &runtime,
            &registry,
            &vocabulary(),
            "trap-prepare",
            &json!({}),
        );
        let Err(OpenError::Fault(fault)) = error else {
            panic!("it opened");
        };
        assert!(fault.message.contains("`prepare`"), "{fault}");
    });
}

#[test]
fn code_is_compiled_once_and_anew_when_its_files_are_not_whole() {
    on_guest_thread(|| {
        let runtime = Runtime::new(limits()).unwrap();
        let cache = CountedCache::new();
        let start = || {
            let registry = cache.registry(&runtime, Some(&vocabulary()));
            assert_eq!(masks(&runtime, &registry, &vocabulary()).unwrap(), MASKS);
            cache.n_runs()
        };
        assert_eq!(start(), 3);
        assert_eq!(start(), 3);
        assert_eq!(cache.files("work"), [] as [&Path; 0]);
        for path in cache.files("cwasm") {
            let mut code = fs::read(&path).unwrap();
            let middle = code.len() / 2;
            code[middle] ^= 1;
            fs::write(&path, code).unwrap();
        }
        assert_eq!(start(), 6);
        for path in cache.files("json") {
            let record = fs::read(&path).unwrap();
            fs::write(&path, &record[..record.len() / 2]).unwrap();
        }
        assert_eq!(start(), 9);
        for path in cache.files("cwasm") {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        }
        assert_eq!(start(), 12);
        assert_eq!(start(), 12);
    });
}
