//! `sluice plugin test`: a plugin against worked numbers.

use std::path::PathBuf;
use std::sync::Arc;

use sluice_contract::cases::{self, Case, Failure, INVALID_PARAMS, MAX_TOKENS};

use super::outcome::{self, Outcome};
use super::workbench::Workbench;
use super::{AuthorError, read, vocabulary};
use crate::plugin::{Choices, Kind, OpenChain, OpenError, Plugin, SequenceInfo};

/// What the help says of the cases' file.
pub(super) const FORMAT: &str = cases::FORMAT;

/// Which cases are run.
#[derive(Debug, clap::Args)]
pub struct TestArgs {
    /// A component, or a core module that carries its component type
    pub file: PathBuf,
    /// The cases
    pub cases: PathBuf,
}

/// Runs all cases, with a line for each.
///
/// # Errors
/// When a file cannot be read or is not what it should be.
pub(super) fn run(args: &TestArgs) -> Result<bool, AuthorError> {
    let text = String::from_utf8_lossy(&read(&args.cases)?).into_owned();
    let cases = cases::parse(&text)
        .map_err(|error| AuthorError::Usage(format!("{}: {error}", args.cases.display())))?;
    if cases.is_empty() {
        let message = format!("{} has no cases", args.cases.display());
        return Err(AuthorError::Usage(message));
    }
    let bench = Workbench::new()?;
    let plugin = bench.load(&read(&args.file)?)?;
    let mut n_failed = 0;
    for case in &cases {
        let kind = match plugin.kind {
            Kind::TokenProcessor => cases::Kind::TokenProcessor,
            Kind::LogitsProcessor => cases::Kind::LogitsProcessor,
            Kind::Sampler => cases::Kind::Sampler,
        };
        match case.check(kind, || open(case, &bench, &plugin), ask) {
            Ok(()) => println!("ok      {}", case.id),
            Err(why) => {
                n_failed += 1;
                println!("failed  {}: {why}", case.id);
            }
        }
    }
    println!("{} of {} cases hold", cases.len() - n_failed, cases.len());
    Ok(n_failed == 0)
}

fn open(case: &Case, bench: &Workbench, plugin: &Arc<Plugin>) -> Result<OpenChain, Failure> {
    let open = || {
        let texts = case.texts();
        let vocabulary = vocabulary::of_case(texts.len() as u32, Some(&texts), &case.end_ids)?;
        let info = SequenceInfo {
            prompt: case.prompt_tokens.clone(),
            max_tokens: MAX_TOKENS,
            end_ids: case.end_ids.clone(),
        };
        let choices = Choices {
            n: 1,
            seed: case.seed,
            explain: false,
        };
        let stages = bench.chain(plugin, &case.params)?;
        let mut chains = bench.open(&vocabulary, &stages, &info, choices)?;
        Ok(chains.remove(0))
    };
    open().map_err(|error: AuthorError| match error {
        AuthorError::Open(OpenError::Fault(fault)) => Failure::new(fault.kind, fault.message),
        AuthorError::Params { .. } | AuthorError::Open(OpenError::InvalidParams { .. }) => {
            Failure::new(INVALID_PARAMS, error.to_string())
        }
        other => Failure::new("host", other.to_string()),
    })
}

fn ask(chain: &mut OpenChain, accepted: &[u32], row: &[f32]) -> cases::Outcome {
    match outcome::ask(chain, accepted, row) {
        Outcome::Forced(tokens) => cases::Outcome::Forced(tokens),
        Outcome::Stopped => cases::Outcome::Stopped,
        Outcome::Chose { row, token } => cases::Outcome::Chose { row, token },
        Outcome::Failed(fault) => cases::Outcome::Failed(Failure::new(fault.kind, fault.message)),
    }
}
