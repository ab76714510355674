//! The one configuration of a server, from flags, environment and defaults.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{
    Args, CommandFactory, FromArgMatches, Parser, Subcommand, builder::NonEmptyStringValueParser,
    value_parser,
};

use crate::author::PluginCommand;
use crate::bench::BenchArgs;
use crate::engine::EngineConfig;
use crate::http::{AccessLog, Host, Origin, RequestLimits, Web};
use crate::mlx::ModelSource;
use crate::perplexity::PerplexityArgs;
use crate::plugin;
use crate::serve::Endings;
use crate::telemetry::LogFormat;

/// Serves text generation on MLX in which WebAssembly components choose every
/// token.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeConfig,
}

/// What the program does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the HTTP API; what happens without a command
    Serve(Box<ServeConfig>),
    /// Measure decode steps at given batch sizes, with and without a chain
    Bench {
        #[command(flatten)]
        args: BenchArgs,
        #[command(flatten)]
        model: ModelConfig,
    },
    /// Measure how well the model predicts texts: perplexity, bits per byte
    Perplexity {
        #[command(flatten)]
        args: PerplexityArgs,
        #[command(flatten)]
        model: ModelConfig,
    },
    /// Write, check and upload plugins
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Compile one plugin from standard input, for the server itself
    #[command(hide = true)]
    PluginCompile(plugin::CompileTask),
}

impl Cli {
    /// The command that the process was asked for, from its arguments and the
    /// variables of that command. Ends the process where they are none, and where
    /// help is asked for.
    pub fn read() -> Command {
        match Self::try_read(std::env::args_os()) {
            Ok(command) => command,
            Err(error) => error.exit(),
        }
    }

    /// The variables of `serve` without its name are not read where another
    /// command is named: it has nothing to do with them, whatever they are.
    fn try_read(
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Command, clap::Error> {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let mut cli = Self::command();
        // Options before it are an error, so a command is the first argument.
        let first = arguments.get(1);
        if first.is_some_and(|name| cli.find_subcommand(name).is_some()) {
            cli = cli.mut_args(|argument| argument.env(None::<&str>));
        }
        let mut matches = cli.try_get_matches_from_mut(arguments)?;
        let parsed = Self::from_arg_matches_mut(&mut matches);
        parsed
            .map(Self::into_command)
            .map_err(|error| error.format(&mut cli))
    }

    /// The command, `serve` if none was given.
    fn into_command(self) -> Command {
        self.command
            .unwrap_or_else(|| Command::Serve(Box::new(self.serve)))
    }
}

/// Which model, and where things are kept.
#[derive(Clone, Debug, Default, Args)]
pub struct ModelConfig {
    /// GGUF file, or Hugging Face or MLX folder, or hf:OWNER/NAME@REVISION, or
    /// hf:OWNER/NAME/FILE.gguf@REVISION, fetched from the hub [default:
    /// SmolLM2-135M-Instruct, fetched once]
    #[arg(long = "model", env = "SLUICE_MODEL", value_name = "MODEL")]
    pub source: Option<ModelSource>,

    /// Names that requests give as `model`, with commas between; answers have
    /// the first [default: the model's own]
    #[arg(
        long = "model-name",
        env = "SLUICE_MODEL_NAME",
        value_name = "NAMES",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub names: Vec<String>,

    /// Ask nothing over the network: a model that was not fetched before is an
    /// error
    #[arg(long, env = "SLUICE_OFFLINE")]
    pub offline: bool,

    /// Where models and compiled plugins are kept [default: the user's cache]
    #[arg(long, env = "SLUICE_CACHE", value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
}

/// How to serve.
#[derive(Clone, Debug, Args)]
pub struct ServeConfig {
    #[command(flatten)]
    pub model: ModelConfig,

    /// Address to listen on; the default is this machine alone
    #[arg(long, env = "SLUICE_HOST", default_value = "127.0.0.1")]
    pub host: String,

    /// File of the tokens that requests must carry, one a line: a name, scopes
    /// (generate, upload, admin) with commas between, and the secret. Without
    /// it everybody may do everything, but for uploads when other machines can
    /// reach the server
    #[arg(long, env = "SLUICE_TOKENS", value_name = "FILE")]
    pub tokens: Option<PathBuf>,

    /// Where uploaded plugins are kept, for one server at a time [default: a
    /// folder of the user's data]
    #[arg(long, env = "SLUICE_DATA", value_name = "FOLDER")]
    pub data: Option<PathBuf>,

    /// Folder whose `.wasm` files are registered too, and again when they
    /// change
    #[arg(long = "plugins", env = "SLUICE_PLUGINS", value_name = "FOLDER")]
    pub plugins_folder: Option<PathBuf>,

    /// Port to listen on; 0 takes a free one and prints it
    #[arg(long, env = "SLUICE_PORT", default_value_t = 8080, value_parser = port)]
    pub port: u16,

    /// Most sequences in one batch; a step grows with it, and so does what a
    /// step yields
    #[arg(long, env = "SLUICE_MAX_BATCH", default_value_t = 16, value_parser = at_least_one())]
    pub max_batch: u32,

    /// Most prompt tokens computed in one step; a smaller chunk stalls other
    /// sequences for less time, a larger one reads prompts faster
    #[arg(long, env = "SLUICE_PREFILL_CHUNK", default_value_t = 256, value_parser = at_least_one())]
    pub prefill_chunk: u32,

    /// Most sequences that wait for a place in the batch; more get a 429
    #[arg(long, env = "SLUICE_MAX_WAITING", default_value_t = 256, value_parser = at_least_one())]
    pub max_waiting: u32,

    /// Most tokens, prompts and completions, that the KV cache holds at once; it
    /// bounds the model's memory. When running requests come to need more, the
    /// youngest wait and are computed again later
    #[arg(long, env = "SLUICE_KV_TOKENS", default_value_t = 131_072, value_parser = value_parser!(u32).range(2..))]
    pub kv_tokens: u32,

    /// Memory for what is kept of finished requests, in MiB, so that a prompt
    /// that begins alike need not be computed again; 0: nothing is kept. Who
    /// can measure time to the first token can learn from it how others'
    /// prompts begin
    #[arg(long, env = "SLUICE_PREFIX_CACHE_MIB", default_value_t = 1024)]
    pub prefix_cache_mib: u32,

    /// Rows up to which a step is filled with drafts: tokens that come next if
    /// the text repeats itself, verified together. Where they are right several
    /// tokens come at once; the tokens are the same. 0: no drafts
    #[arg(long, env = "SLUICE_DRAFT_ROWS", default_value_t = 8)]
    pub draft_rows: u32,

    /// Largest body of a generation request, in bytes
    #[arg(long, env = "SLUICE_MAX_BODY_BYTES", default_value_t = 8 << 20, value_parser = at_least_one())]
    pub max_body_bytes: u32,

    /// Largest plugin, in bytes; one in Python has 18 MB
    #[arg(long, env = "SLUICE_MAX_PLUGIN_BYTES", default_value_t = 64 << 20, value_parser = at_least_one())]
    pub max_plugin_bytes: u32,

    /// Most uploads of one caller in a minute, which may come at once; more get
    /// a 429. 0: no limit
    #[arg(long, env = "SLUICE_UPLOADS_PER_MINUTE", default_value_t = 60)]
    pub uploads_per_minute: u32,

    /// Longest a request may take, waiting included, in seconds; then it gets a
    /// 504, or an error in its stream
    #[arg(long, env = "SLUICE_MAX_REQUEST_S", default_value_t = 600, value_parser = at_least_one())]
    pub max_request_s: u32,

    /// Most generation requests that one token may have under way at once; more
    /// get a 429. Without tokens all callers are one. 0: no limit
    #[arg(long, env = "SLUICE_MAX_REQUESTS_PER_CALLER", default_value_t = 0)]
    pub max_requests_per_caller: u32,

    /// Origin whose pages may use the server from a browser, such as
    /// https://chat.example; may be given several times; `*`: any
    #[arg(
        long,
        env = "SLUICE_CORS_ORIGIN",
        value_name = "ORIGIN",
        value_delimiter = ','
    )]
    pub cors_origin: Vec<Origin>,

    /// Name by which a server without tokens may be spoken to, beside addresses,
    /// localhost and --host, such as that of a proxy; may be given several times;
    /// `*`: any, also those of pages in a browser that are made to mean this server
    #[arg(
        long,
        env = "SLUICE_ALLOWED_HOST",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub allowed_host: Vec<Host>,

    /// Compress answers by gzip where the client takes it; streams are not
    #[arg(long, env = "SLUICE_COMPRESS")]
    pub compress: bool,

    /// Write a line for each request on standard output, once it is answered to
    /// its last byte
    #[arg(long, env = "SLUICE_ACCESS_LOG", value_enum, default_value = "off")]
    pub access_log: AccessLog,

    /// Export spans of requests and steps to this collector, by OTLP over HTTP,
    /// such as http://127.0.0.1:4318; empty: to none
    // Read where it is used: clap would show a password in it.
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub otlp_endpoint: Option<String>,

    /// How what the server has to say is written on standard error; RUST_LOG
    /// chooses what
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,

    /// How long requests under way may go on after SIGTERM or Ctrl-C, in
    /// seconds, while new ones get a 503; then they are ended with an error. A
    /// second signal ends the server at once
    #[arg(long, env = "SLUICE_DRAIN_S", default_value_t = 30)]
    pub drain_s: u32,

    /// How long a client may take nothing of what there is for it before its
    /// connection is closed, in seconds
    #[arg(long, env = "SLUICE_SLOW_READER_S", default_value_t = 30, value_parser = at_least_one())]
    pub slow_reader_s: u32,

    /// How long one step of the engine may take, in seconds; then it counts as
    /// stuck: requests under way get an error and the server exits with 70. A
    /// large model on few processors may need a minute for a chunk of a prompt
    #[arg(long, env = "SLUICE_STUCK_STEP_S", default_value_t = 300, value_parser = at_least_one())]
    pub stuck_step_s: u32,

    /// Most stages of all requests open at once; more wait
    #[arg(long, env = "SLUICE_MAX_INSTANCES", default_value_t = 512, value_parser = at_least_one())]
    pub max_instances: u32,

    /// Most instances of all uploaded versions of one name at once; more wait
    #[arg(long, env = "SLUICE_MAX_INSTANCES_OF_ONE", default_value_t = 256, value_parser = at_least_one())]
    pub max_instances_of_one: u32,

    /// How long a request waits for room for its instances and their memory before it gets a
    /// 429, in milliseconds
    #[arg(long, env = "SLUICE_PLUGIN_WAIT_MS", default_value_t = 2000)]
    pub plugin_wait_ms: u32,

    /// Longest a request's token processors may take together for one position,
    /// and again its other stages, in milliseconds of wall time; less than 50
    /// hits innocents on a busy machine
    #[arg(long, env = "SLUICE_PLUGIN_CALL_MS", default_value_t = 50, value_parser = at_least_one())]
    pub plugin_call_ms: u32,

    /// How long a step waits for token processors with `on_fault: wait` before
    /// it goes on without their request, in milliseconds; above the time of a
    /// step, others wait for them
    #[arg(long, env = "SLUICE_PLUGIN_PATIENCE_MS", default_value_t = 10)]
    pub plugin_patience_ms: u32,

    /// Longest that token processors with `on_fault: wait` may take together
    /// for one position, in milliseconds
    #[arg(long, env = "SLUICE_PLUGIN_LATE_MS", default_value_t = 5000, value_parser = at_least_one())]
    pub plugin_late_ms: u32,

    /// Longest that the stages of one sequence may take in all, in seconds
    #[arg(long, env = "SLUICE_PLUGIN_TOTAL_S", default_value_t = 120, value_parser = at_least_one())]
    pub plugin_total_s: u32,

    /// Longest a plugin may take to open a sequence, in milliseconds
    #[arg(long, env = "SLUICE_PLUGIN_OPEN_MS", default_value_t = 1000, value_parser = at_least_one())]
    pub plugin_open_ms: u32,

    /// Most memory of one plugin instance, in bytes; a grammar over 262,144
    /// tokens needs 152 MB
    #[arg(long, env = "SLUICE_PLUGIN_MEMORY_BYTES", default_value_t = 256 << 20, value_parser = at_least_one())]
    pub plugin_memory_bytes: u32,

    /// Most plugins registered at once; each keeps an open file
    #[arg(long, env = "SLUICE_MAX_PLUGINS", default_value_t = 2000, value_parser = at_least_one())]
    pub max_plugins: u32,

    /// Processor time that compiling a plugin may take, in seconds; one in
    /// Python takes ten and more
    #[arg(long, env = "SLUICE_PLUGIN_COMPILE_S", default_value_t = 40, value_parser = at_least_one())]
    pub plugin_compile_s: u32,

    /// Memory that compiling a plugin may take, in bytes of address space
    #[arg(long, env = "SLUICE_PLUGIN_COMPILE_BYTES", default_value_t = 2 << 30, value_parser = at_least_one())]
    pub plugin_compile_bytes: u32,

    /// Most memory of all plugin instances together, in MiB, of which one
    /// uploaded plugin's get half at most
    #[arg(long, env = "SLUICE_PLUGIN_TOTAL_MEMORY_MIB", default_value_t = 4096, value_parser = at_least_one())]
    pub plugin_total_memory_mib: u32,

    /// Longest a plugin may take to prepare for a vocabulary, in milliseconds
    #[arg(long, env = "SLUICE_PLUGIN_PREPARE_MS", default_value_t = 10_000, value_parser = at_least_one())]
    pub plugin_prepare_ms: u32,

    /// Faults of one plugin within `--plugin-fault-window-s` after which
    /// requests with it get a 503, until it is enabled again; 0: never
    #[arg(long, env = "SLUICE_PLUGIN_MAX_FAULTS", default_value_t = 10)]
    pub plugin_max_faults: u32,

    /// The window of `--plugin-max-faults`, in seconds
    #[arg(long, env = "SLUICE_PLUGIN_FAULT_WINDOW_S", default_value_t = 60, value_parser = at_least_one())]
    pub plugin_fault_window_s: u32,
}

fn port(text: &str) -> Result<u16, String> {
    if text.starts_with("tcp://") {
        let message = "this is no port but what Kubernetes puts into SLUICE_PORT beside a service \
                       that is called sluice; give --port, or enableServiceLinks: false to the pod";
        return Err(message.into());
    }
    text.parse()
        .map_err(|_| "a port is an integer from 0 to 65535".into())
}

fn at_least_one() -> clap::builder::RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..)
}

impl ServeConfig {
    /// The engine's part.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            max_batch: self.max_batch as usize,
            prefill_chunk: self.prefill_chunk as usize,
            max_waiting: self.max_waiting as usize,
            kv_tokens: self.kv_tokens as usize,
            prefix_bytes: (self.prefix_cache_mib as usize) << 20,
            draft_rows: self.draft_rows as usize,
        }
    }

    /// The plugin runtime's part.
    pub fn plugins(&self) -> plugin::Limits {
        plugin::Limits {
            max_instances: self.max_instances,
            max_instances_of_one: self.max_instances_of_one,
            wait: Duration::from_millis(self.plugin_wait_ms.into()),
            call: Duration::from_millis(self.plugin_call_ms.into()),
            patience: Duration::from_millis(self.plugin_patience_ms.into()),
            late: Duration::from_millis(self.plugin_late_ms.into()),
            total: Duration::from_secs(self.plugin_total_s.into()),
            open: Duration::from_millis(self.plugin_open_ms.into()),
            memory_bytes: self.plugin_memory_bytes as usize,
            total_memory_bytes: (self.plugin_total_memory_mib as usize) << 20,
            prepare: Duration::from_millis(self.plugin_prepare_ms.into()),
            upload_bytes: self.max_plugin_bytes as usize,
            max_plugins: self.max_plugins,
            compile: Duration::from_secs(self.plugin_compile_s.into()),
            compile_bytes: self.plugin_compile_bytes.into(),
            breaker: plugin::Breaker {
                faults: self.plugin_max_faults,
                window: Duration::from_secs(self.plugin_fault_window_s.into()),
            },
        }
    }

    /// The HTTP server's part.
    pub fn requests(&self) -> RequestLimits {
        RequestLimits {
            request_bytes: self.max_body_bytes as usize,
            plugin_bytes: self.max_plugin_bytes as usize,
            choices: RequestLimits::default()
                .choices
                .min(self.max_waiting as usize),
            answer_values: RequestLimits::default().answer_values,
            time: Duration::from_secs(self.max_request_s.into()),
            uploads_per_minute: self.uploads_per_minute,
            per_caller: self.max_requests_per_caller,
            step: Duration::from_secs(self.stuck_step_s.into()),
        }
    }

    /// What browsers and slow lines get.
    pub fn web(&self) -> Web {
        let own = [Host::One(self.host.clone())];
        Web {
            origins: self.cors_origin.clone(),
            hosts: own.into_iter().chain(self.allowed_host.clone()).collect(),
            compress: self.compress,
            log: self.access_log,
            traces: None,
        }
    }

    /// How connections and the whole server end.
    pub fn endings(&self) -> Endings {
        Endings {
            drain: Duration::from_secs(self.drain_s.into()),
            slow_reader: Duration::from_secs(self.slow_reader_s.into()),
        }
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
