//! `sluice plugin …`: what an author does with a plugin, from the empty
//! project to the running server. Everything but the commands that name a
//! server works without a model or a server.

mod bench;
mod cases;
mod check;
mod client;
mod diff;
mod new;
mod outcome;
mod random;
mod vocabulary;
mod workbench;

use std::io;
use std::path::PathBuf;

use clap::Subcommand;

use crate::engine::Fault;
use crate::plugin::{OpenError, RuntimeError, STACK_BYTES, UploadError};

/// What to do with a plugin.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Make a project that builds and passes its own test
    New(new::NewArgs),
    /// Find what would go wrong in a server: exit status 1 if there is something
    Check(check::CheckArgs),
    /// Run worked cases: exit status 1 if one does not hold
    #[command(after_long_help = cases::FORMAT)]
    Test(cases::TestArgs),
    /// Measure how long its calls take, and its memory
    Bench(bench::BenchArgs),
    /// Run two versions side by side: exit status 1 if they differ
    Diff(diff::DiffArgs),
    /// Upload it to a server
    Push(client::PushArgs),
    /// List a server's plugins
    List(client::ListArgs),
    /// Show what a server knows of one plugin, with its last messages
    Show(client::ReferenceArgs),
    /// Hide a plugin from new requests of a server; running ones keep it
    Remove(client::ReferenceArgs),
}

/// A component that is larger takes so long to compile that its author is told.
const SLOW_BYTES: usize = 1 << 20;

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum AuthorError {
    #[error("cannot read {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("no temporary folder: {0}")]
    Temporary(io::Error),
    #[error("{0}")]
    Usage(String),
    #[error("it is refused: {0}")]
    Upload(#[from] UploadError),
    #[error(
        "the params do not fit the schema of `{plugin}`, at {}: {message}; give others with --params",
        place(.pointer)
    )]
    Params {
        plugin: String,
        pointer: String,
        message: String,
    },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("the server {0}")]
    Server(String),
}

/// A JSON pointer in words: the one to the whole has no letters.
fn place(pointer: &str) -> String {
    match pointer {
        "" => "the root".to_owned(),
        _ => format!("`{pointer}`"),
    }
}

/// Does what was asked, and says whether all is well.
///
/// # Errors
/// When it could not be done.
pub fn run(command: PluginCommand) -> Result<bool, AuthorError> {
    // Guests need more stack than a program's first thread may have.
    std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || dispatch(&command))
        .map_err(AuthorError::Temporary)?
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn dispatch(command: &PluginCommand) -> Result<bool, AuthorError> {
    match command {
        PluginCommand::New(args) => new::run(args),
        PluginCommand::Check(args) => check::run(args),
        PluginCommand::Test(args) => cases::run(args),
        PluginCommand::Bench(args) => bench::run(args),
        PluginCommand::Diff(args) => diff::run(args),
        PluginCommand::Push(args) => client::push(args),
        PluginCommand::List(args) => client::list(args),
        PluginCommand::Show(args) => client::show(args),
        PluginCommand::Remove(args) => client::remove(args),
    }
}

/// A file's bytes.
fn read(path: &std::path::Path) -> Result<Vec<u8>, AuthorError> {
    std::fs::read(path).map_err(|source| AuthorError::Read {
        path: path.to_owned(),
        source,
    })
}
