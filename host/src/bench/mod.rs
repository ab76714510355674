//! `sluice bench`: how long a decode step, a prompt and an opened chain take on
//! this machine, and how much of it plugins take.
//!
//! ```text
//! arms ─ who chooses the tokens, as data ──┐
//! rounds ─ decode steps, arms in turn ─────┼─ report ─ figures, ratios, a table
//! prompts · opening · memory · serve ──────┘
//! ```
//!
//! All arms run on one engine, round after round, so that a slow minute of the
//! machine meets all of them, and are compared within a round.

mod arms;
mod clock;
mod engine;
mod memory;
mod opening;
mod prompts;
mod report;
mod rounds;
mod serve;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde_json::json;

pub use self::arms::{Arm, NativeChain, NativeSequence};
use self::engine::Bench;
use crate::assemble::AssembleError;
use crate::config::ModelConfig;
use crate::engine::SubmitError;
use crate::plugin::{OpenError, ParamsError};

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// Batch sizes
    #[arg(long, value_delimiter = ',', default_value = "1,8,16")]
    pub batch: Vec<usize>,
    /// Who chooses the tokens, in turn
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "none,greedy,default",
        value_parser = arms::parser()
    )]
    pub chain: Vec<&'static Arm>,
    /// Tokens of each prompt
    #[arg(long, value_delimiter = ',', default_value = "64",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: Vec<u32>,
    /// Steps measured in each round
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Rounds, after one that warms up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// In each round also read so much memory, on all processors: the bytes of
    /// the model's weights give what the steps could reach
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65_536),
          conflicts_with_all = ["prefill", "open", "serve"])]
    pub read_mib: Option<u32>,
    /// Measure the time to the first token of prompts of so many tokens instead
    #[arg(long, value_name = "TOKENS", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..),
          conflicts_with_all = ["open", "serve"])]
    pub prefill: Vec<u32>,
    /// Open each chain so many times instead
    #[arg(long, value_name = "TIMES", conflicts_with = "serve",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub open: Option<u32>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: serve::ServeArgs,
}

/// Why a bench could not run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("the server at {0}")]
    Server(String),
    #[error("no plugin is named `{0}`")]
    NoPlugin(&'static str),
    #[error("the parameters of `{plugin}`: {error}")]
    Params {
        plugin: &'static str,
        error: serde_json::Error,
    },
    #[error("the plugin `{plugin}` refuses its parameters: {}", error.message)]
    Refused {
        plugin: &'static str,
        error: ParamsError,
    },
    #[error("a prompt of {prompt} tokens and {tokens} steps exceed the context of {context}")]
    TooLong {
        prompt: u32,
        tokens: u32,
        context: u32,
    },
    #[error("`{arm}` chose other tokens than `{other}`, whose logic it should have")]
    Differ {
        arm: &'static str,
        other: &'static str,
    },
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error("a sequence ended early: {0}")]
    Ended(String),
}

/// Measures and prints: the loaded model, or a running server.
///
/// # Errors
/// When the model cannot be loaded, a chain not opened, or a sequence ends
/// early; when the server cannot be reached or does not answer as it should.
pub fn run(model: &ModelConfig, args: &BenchArgs) -> Result<(), BenchError> {
    if let Some(url) = &args.server.serve {
        return serve::run(url, args);
    }
    let (bench, thread) = Bench::new(model, args)?;
    let (figures, table) = if !args.prefill.is_empty() {
        prompts::measure(&bench, args)?
    } else if let Some(times) = args.open {
        opening::measure(&bench, args, times)?
    } else {
        rounds::measure(&bench, args)?
    };
    if args.json {
        println!("{figures}");
    } else {
        print!("{table}");
    }
    drop(bench);
    // MLX must not be torn down under its own thread.
    thread
        .join()
        .map_err(|_| BenchError::Ended("the engine's thread panicked".into()))
}

/// The time, in milliseconds, that this share of the sorted ones is within.
fn quantile(sorted: &[Duration], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let index = (share * last as f64).round() as usize;
    sorted
        .get(index)
        .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// What figures are printed as with `--json`.
fn rows(figures: &[impl serde::Serialize]) -> serde_json::Value {
    json!({ "rows": figures })
}
