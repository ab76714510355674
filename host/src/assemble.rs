//! From a configuration to a service that can answer: model, tokenizer,
//! plugins and engine, put together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use etcetera::BaseStrategy;

use crate::config::ModelConfig;
use crate::engine::{self, EngineConfig, Handle, ModelInfo, SpawnError};
use crate::http::{
    Access, Concurrency, Lifecycle, RequestLimits, ServedModel, Service, UploadRate, Web,
};
use crate::mlx::{
    self, Backend, Checkpoint, GgufTokenizer, Hub, LoadError, ModelSource, Shelf, TokenizerData,
};
use crate::plugin::{
    self, Compiler, Registry, Runtime, RuntimeError, Store, StoreError, UploadError, Vocabulary,
    VocabularyError,
};
use crate::progress::ProgressLine;
use crate::telemetry::Metrics;
use crate::text::{ChatTemplate, GgufVocabulary, TemplateError, Tokenizer, TokenizerError};

/// A component of `plugins/dist`, with its name.
macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../plugins/dist/", $name, ".wasm")))),*]
    };
}

/// The default plugins' components, as shipped.
const BUILTIN: [(&str, &[u8]); 7] = shipped![
    "rules",
    "penalties",
    "dry",
    "grammar",
    "sampler",
    "mirostat",
    "adaptive-p",
];

/// A default plugin's component, as shipped.
pub(crate) fn builtin(name: &str) -> Option<&'static [u8]> {
    let found = BUILTIN.iter().find(|(builtin, _)| *builtin == name);
    found.map(|(_, bytes)| *bytes)
}

/// Why a service could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    #[error("there is no home directory to keep a cache in; name one with --cache")]
    NoCache,
    #[error("there is no home directory to keep plugins in; name one with --data")]
    NoData,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot find this program's own file, which compiles plugins: {0}")]
    NoExecutable(std::io::Error),
    #[error(transparent)]
    Model(#[from] LoadError),
    #[error("the model's tokenizer: {0}")]
    Tokenizer(#[from] TokenizerError),
    #[error("the tokenizer has {tokenizer} tokens, but the model's rows only {rows}")]
    TokenizerTooLarge { tokenizer: u32, rows: u32 },
    #[error("the model's chat template: {0}")]
    Template(#[from] TemplateError),
    #[error("the model's vocabulary: {0}")]
    Vocabulary(#[from] VocabularyError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("the plugin compiler: {0}")]
    Compiler(UploadError),
    #[error("the shipped plugin `{name}`: {error}")]
    Builtin {
        name: &'static str,
        error: UploadError,
    },
    #[error("{0}")]
    Engine(String),
}

/// Puts a service together. Shows its progress and takes seconds; the first
/// time it also fetches the default model and compiles the shipped plugins.
///
/// # Errors
/// When a part cannot be had, in one sentence.
pub fn assemble(
    model: &ModelConfig,
    engine: EngineConfig,
    plugins: plugin::Limits,
    requests: RequestLimits,
    access: Access,
    web: Web,
    store: Option<Store>,
) -> Result<(Arc<Service>, JoinHandle<()>), AssembleError> {
    let cache = cache_folder(model)?;
    let prepared = Prepared::new(model, &engine)?;
    let runtime = Runtime::new(plugins)?;
    let registry = registry(runtime.clone(), &cache, prepared.model.vocabulary())?;
    let registry = match store {
        Some(store) => registry.with_store(store)?,
        None => registry,
    };
    let registry = Arc::new(registry);
    // Last, for MLX must not be torn down under the engine's thread.
    let Loaded {
        model,
        engine,
        thread,
    } = prepared.start(engine)?;
    let metrics = Metrics::new(engine.clone(), runtime.clone(), registry.clone());
    let service = Service {
        model,
        engine,
        runtime,
        registry,
        limits: requests,
        access,
        upload_rate: UploadRate::per_minute(requests.uploads_per_minute),
        concurrency: Concurrency::per_caller(requests.per_caller),
        lifecycle: Lifecycle::default(),
        web,
        metrics: Arc::new(metrics),
    };
    Ok((Arc::new(service), thread))
}

/// A model that is ready to compute.
pub struct Loaded {
    pub model: ServedModel,
    pub engine: Handle,
    /// The engine's, which ends after the last handle.
    pub thread: JoinHandle<()>,
}

/// Loads a model and starts its engine. Shows its progress and takes seconds;
/// the first time it also fetches the default model.
///
/// # Errors
/// When a part cannot be had, in one sentence.
pub fn load(model: &ModelConfig, engine: EngineConfig) -> Result<Loaded, AssembleError> {
    Prepared::new(model, &engine)?.start(engine)
}

/// A model whose files have been read, but for the weights.
struct Prepared {
    checkpoint: Checkpoint,
    model: ServedModel,
    info: ModelInfo,
    progress: ProgressLine,
}

impl Prepared {
    fn new(model: &ModelConfig, engine: &EngineConfig) -> Result<Self, AssembleError> {
        let mut progress = ProgressLine::default();
        let shelf = Shelf {
            cache: cache_folder(model)?,
            hub: Hub::from_env(model.cache.as_deref()),
            offline: model.offline,
        };
        let source = model.source.as_ref().unwrap_or(&ModelSource::Default);
        let path = source.fetch(&shelf, &mut |step| progress.show(step))?;
        let checkpoint = Checkpoint::open(&path)?;
        let tokenizer = tokenizer(&checkpoint)?;
        let info = model_info(engine, &checkpoint, &tokenizer);
        let model = served_model(model, &checkpoint, tokenizer, &info)?;
        Ok(Self {
            checkpoint,
            model,
            info,
            progress,
        })
    }

    /// Loads the weights, on the engine's own thread.
    fn start(self, engine: EngineConfig) -> Result<Loaded, AssembleError> {
        let Self {
            checkpoint,
            model,
            info,
            mut progress,
        } = self;
        let (engine, thread) = engine::spawn(engine, info, move || {
            mlx::load(&checkpoint, Backend::detect(), &mut |step| {
                progress.show(step);
            })
        })
        .map_err(|error| match error {
            SpawnError::Model(error) => AssembleError::Model(error),
            SpawnError::Threads(message) => AssembleError::Engine(message),
        })?;
        Ok(Loaded {
            model,
            engine,
            thread,
        })
    }
}

/// Where models and compiled plugins are kept.
///
/// # Errors
/// When none is named and the user has no home directory.
pub fn cache_folder(config: &ModelConfig) -> Result<PathBuf, AssembleError> {
    match &config.cache {
        Some(folder) => Ok(folder.clone()),
        None => etcetera::choose_base_strategy()
            .map(|folders| folders.cache_dir().join("sluice"))
            .map_err(|_| AssembleError::NoCache),
    }
}

/// Opens the store of uploaded plugins.
///
/// # Errors
/// When no folder is named and the user has no home directory, or the store
/// cannot be used.
pub fn store(folder: Option<&Path>) -> Result<Store, AssembleError> {
    let folder = match folder {
        Some(folder) => folder.to_owned(),
        None => etcetera::choose_base_strategy()
            .map(|folders| folders.data_dir().join("sluice"))
            .map_err(|_| AssembleError::NoData)?,
    };
    Ok(Store::open(&folder)?)
}

/// The tokenizer of a model's files, as wide as the model's rows.
///
/// # Errors
/// When the files describe none that can be made, or too large a one.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer, AssembleError> {
    let mut tokenizer = match &checkpoint.tokenizer {
        TokenizerData::Json(json) => Tokenizer::from_json(json)?,
        TokenizerData::Gguf(keys) => Tokenizer::from_gguf(gguf_vocabulary(keys))?,
    };
    if tokenizer.size() > checkpoint.vocabulary_size {
        return Err(AssembleError::TokenizerTooLarge {
            tokenizer: tokenizer.size(),
            rows: checkpoint.vocabulary_size,
        });
    }
    tokenizer.pad_to(checkpoint.vocabulary_size);
    Ok(tokenizer)
}

fn gguf_vocabulary(keys: &GgufTokenizer) -> GgufVocabulary {
    GgufVocabulary {
        model: keys.model.clone(),
        pre: keys.pre.clone(),
        tokens: keys.tokens.clone(),
        merges: keys.merges.clone(),
        scores: keys.scores.clone(),
        token_types: keys.token_types.clone(),
        bos: keys.bos,
        add_bos: keys.add_bos,
        add_space_prefix: keys.add_space_prefix,
    }
}

fn model_info(config: &EngineConfig, checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> ModelInfo {
    ModelInfo {
        vocabulary_size: checkpoint.vocabulary_size,
        tokenizer_size: tokenizer.size(),
        end_of_sequence: checkpoint.end_of_sequence.clone(),
        // What the KV cache can never hold is no context.
        context_length: checkpoint.context_length.min(config.kv_tokens as u32),
    }
}

fn served_model(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    tokenizer: Tokenizer,
    info: &ModelInfo,
) -> Result<ServedModel, AssembleError> {
    let template = checkpoint
        .chat_template
        .as_deref()
        .map(|source| {
            let template = ChatTemplate::new(
                source,
                checkpoint.bos_token.clone(),
                checkpoint.eos_token.clone(),
            )?;
            match &checkpoint.tool_template {
                Some(source) => template.with_tool_use(source),
                None => Ok(template),
            }
        })
        .transpose()?;
    let mut names = config.names.iter().cloned();
    let id = names.next().unwrap_or_else(|| {
        let source = config.source.as_ref().and_then(ModelSource::name);
        source.unwrap_or(&checkpoint.name).to_owned()
    });
    let model = ServedModel::new(id, tokenizer, template, info)?;
    Ok(model.also_called(names.collect()))
}

fn registry(
    runtime: Arc<Runtime>,
    cache: &Path,
    vocabulary: &Vocabulary,
) -> Result<Registry, AssembleError> {
    let executable = std::env::current_exe().map_err(AssembleError::NoExecutable)?;
    let compiler = Compiler::new(executable, cache)
        .and_then(|compiler| compiler.with_vocabulary(vocabulary))
        .map_err(AssembleError::Compiler)?;
    let registry = Registry::new(runtime, compiler);
    for (name, bytes) in BUILTIN {
        registry
            .upload_builtin(bytes)
            .map_err(|error| AssembleError::Builtin { name, error })?;
    }
    Ok(registry)
}
