//! `sluice serve`: listens, assembles the service, answers until a signal.

mod ending;
mod watchdog;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::assemble::{self, AssembleError, assemble};
use crate::config::ServeConfig;
use crate::http::{Access, Web};
use crate::plugin::{Folder, Registry};
use crate::telemetry::{Traces, TracesError};

pub use ending::{Endings, Exit, run};

/// How often a plugin folder is looked at.
const WATCH: Duration = Duration::from_secs(1);

/// What a collector gets to take the last spans.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Why the server did not start or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {host}:{port}: {source}")]
    Listen {
        host: String,
        port: u16,
        source: std::io::Error,
    },
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    #[error("cannot read the tokens in {}: {message}", path.display())]
    Tokens { path: PathBuf, message: String },
    #[error("cannot read the plugin folder {}: {source}", path.display())]
    Plugins {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Traces(#[from] TracesError),
    #[error("the server failed: {0}")]
    Serve(#[from] std::io::Error),
}

/// Serves until the process is told to end.
///
/// # Errors
/// When a part cannot be had. The port is taken first, before any long work.
pub fn serve(config: &ServeConfig) -> Result<Exit, ServeError> {
    allow_files();
    let listener = listen(config)?;
    let address = listener.local_addr()?;
    let access = access(config.tokens.as_deref(), address)?;
    let traces = traces(config)?;
    let store = assemble::store(config.data.as_deref())?;
    let (service, engine) = assemble(
        &config.model,
        config.engine(),
        config.plugins(),
        config.requests(),
        access,
        Web {
            traces: traces.clone(),
            ..config.web()
        },
        Some(store),
    )?;
    if let Some(traces) = &traces {
        service.engine.observe_steps(traces.observer());
    }
    if let Some(path) = &config.plugins_folder {
        watch(path, &service.registry)?;
    }
    let exit = run(listener, service, engine, config.endings())?;
    if let Some(traces) = &traces {
        traces.shutdown(LAST_SPANS);
    }
    Ok(exit)
}

/// What makes spans, where a collector is named and wanted.
fn traces(config: &ServeConfig) -> Result<Option<Traces>, TracesError> {
    match config.otlp_endpoint.as_deref() {
        None | Some("") => Ok(None),
        Some(collector) => Traces::start(collector),
    }
}

/// Raises the number of open files to the most that this user may have: each
/// plugin keeps one, its code, and many shells allow 1,024.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(
            "the limit of open files stays at {:?}: {error}",
            limit.current
        );
    }
}

/// Registers the plugins of a folder, and those that change from then on, as
/// long as the registry lives.
fn watch(path: &Path, registry: &Arc<Registry>) -> Result<(), ServeError> {
    let error = |source| ServeError::Plugins {
        path: path.to_owned(),
        source,
    };
    let mut folder = Folder::open(path.to_owned()).map_err(error)?;
    folder.load(registry, true);
    let registry = Arc::downgrade(registry);
    std::thread::Builder::new()
        .name("sluice-plugins".into())
        .spawn(move || {
            while let Some(registry) = registry.upgrade() {
                folder.load(&registry, false);
                drop(registry);
                std::thread::sleep(WATCH);
            }
        })
        .map(drop)
        .map_err(error)
}

/// Who may do what on a server that listens on `address`.
fn access(tokens: Option<&Path>, address: SocketAddr) -> Result<Access, ServeError> {
    let Some(path) = tokens else {
        return Ok(Access::without_tokens(!address.ip().is_loopback()));
    };
    let error = |message: String| ServeError::Tokens {
        path: path.to_owned(),
        message,
    };
    let text = std::fs::read_to_string(path).map_err(|source| error(source.to_string()))?;
    Access::from_tokens(&text).map_err(|source| error(source.to_string()))
}

fn listen(config: &ServeConfig) -> Result<TcpListener, ServeError> {
    TcpListener::bind((config.host.as_str(), config.port)).map_err(|source| ServeError::Listen {
        host: config.host.clone(),
        port: config.port,
        source,
    })
}
