//! `sluice serve`: listens, assembles the service, answers until a signal.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::assemble::{self, AssembleError, assemble};
use crate::config::ServeConfig;
use crate::http::{Access, Service, router};
use crate::plugin::{Folder, Registry, STACK_BYTES};

/// What requests in flight get to end by themselves after a signal.
const GRACE: Duration = Duration::from_secs(5);

/// How often a plugin folder is looked at.
const WATCH: Duration = Duration::from_secs(1);

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
    #[error("the server failed: {0}")]
    Serve(#[from] std::io::Error),
}

/// Serves until the process is told to end.
///
/// # Errors
/// When a part cannot be had. The port is taken first, before any long work.
pub fn serve(config: &ServeConfig) -> Result<(), ServeError> {
    allow_files();
    let listener = listen(config)?;
    let address = listener.local_addr()?;
    let access = access(config.tokens.as_deref(), address)?;
    let store = assemble::store(config.data.as_deref())?;
    let (service, engine) = assemble(
        &config.model,
        config.engine(),
        config.plugins(),
        config.requests(),
        access,
        Some(store),
    )?;
    if let Some(path) = &config.plugins_folder {
        watch(path, &service.registry)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build()?;
    let served = runtime.block_on(answer(listener, address, service));
    // Drops every task, and with the last of them the engine's last handle.
    runtime.shutdown_timeout(Duration::from_secs(1));
    wait_for(engine);
    Ok(served?)
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

async fn answer(
    listener: TcpListener,
    address: SocketAddr,
    service: Arc<Service>,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let server = axum::serve(listener, router(service)).with_graceful_shutdown(signal());
    println!("listening on http://{address}");
    let patience = async {
        signal().await;
        tracing::info!("ending; requests in flight have {} s", GRACE.as_secs());
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = server.into_future() => result,
        () = patience => {
            tracing::warn!("requests in flight were cut off");
            Ok(())
        }
    }
}

/// Completes when the process is told to end.
async fn signal() {
    let interrupt = async {
        // Without a handler the signal ends the process, which is as well.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
}

/// Lets the engine end its step: MLX must not be torn down under it.
fn wait_for(engine: JoinHandle<()>) {
    let deadline = Instant::now() + GRACE;
    while !engine.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    if engine.is_finished() && engine.join().is_err() {
        tracing::error!("the engine's thread panicked");
    }
}
