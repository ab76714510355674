//! `sluice plugin check`: what would go wrong in a server, found without one.

mod bans;
mod chance;
mod context;
mod finding;
mod replay;
mod rows;
mod sequences;
mod subject;

use std::path::PathBuf;

use serde_json::{Map, Value};

use self::context::Context;
use self::finding::{Findings, cure_of_upload};
use self::subject::Subject;
use super::workbench::{Workbench, parse_params};
use super::{AuthorError, read};
use crate::plugin::{self, Kind, Plugin};

/// What is checked.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// A component, or a core module that carries its component type
    pub file: PathBuf,
    /// Parameters that its behaviour is checked with, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parse_params)]
    pub params: Map<String, Value>,
    /// Other contexts, rows and splits
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// Checks a plugin and prints what is found.
///
/// # Errors
/// When it cannot be checked.
pub(super) fn run(args: &CheckArgs) -> Result<bool, AuthorError> {
    let bytes = read(&args.file)?;
    let bench = Workbench::new()?;
    let plugin = match bench.load(&bytes) {
        Ok(plugin) => plugin,
        Err(AuthorError::Upload(error)) => {
            let what = format!("a server refuses it ({}): {error}", error.code());
            println!("{}", finding::line(&what, cure_of_upload(error.code)));
            return Ok(false);
        }
        Err(other) => return Err(other),
    };
    print_facts(&plugin, &bytes)?;
    let chain = bench.chain(&plugin, &args.params)?;
    let subject = Subject::new(&bench, chain, plugin.kind, args.seed)?;
    let mut findings = Findings::default();
    behave(&subject, &mut findings);
    Ok(findings.print())
}

/// Everything that needs it to run.
fn behave(subject: &Subject<'_>, findings: &mut Findings) {
    // Contexts that cannot be had say why.
    let Some(contexts) = context::make(subject, findings) else {
        return;
    };
    if subject.kind == Kind::TokenProcessor {
        replay::check(subject, &contexts, findings);
    } else {
        chance::check(subject, &contexts, findings);
        replay::note_splits(subject, &contexts, findings);
    }
    if subject.kind == Kind::LogitsProcessor {
        bans::check(subject, &contexts, findings);
    }
    sequences::check(subject, &contexts, findings);
    rows::check(subject, &contexts, findings);
    let acts = subject.kind == Kind::Sampler || !contexts.iter().all(|c| is_idle(subject, c));
    if findings.is_empty() && !acts {
        findings.note(
            "with these params it did nothing at any position, neither an edit nor a decision, so \
             little was checked; give others with --params",
        );
    }
}

/// Whether the plugin changed and decided nothing in a context.
fn is_idle(subject: &Subject<'_>, context: &Context) -> bool {
    let all = &mut context.asked.iter();
    all.all(|(n, outcome)| outcome.leaves(&subject.row(*n)[..=Subject::end_id() as usize]))
}

/// What the plugin is and asks for.
fn print_facts(plugin: &Plugin, bytes: &[u8]) -> Result<(), AuthorError> {
    let interfaces = plugin::interfaces(bytes)?;
    let package = "sluice:sampling/";
    let version = |name: &String| Some(name.strip_prefix(package)?.split_once('@')?.1.to_owned());
    let contract = interfaces.exports.iter().find_map(version);
    let imports: Vec<_> = interfaces
        .imports
        .iter()
        .map(|name| name.strip_prefix(package).unwrap_or(name))
        .map(|name| name.split('@').next().unwrap_or(name))
        .collect();
    println!(
        "{} {}, a {} of {} bytes: {}",
        plugin.name, plugin.version, plugin.kind, plugin.size_bytes, plugin.summary
    );
    println!(
        "contract sluice:sampling@{}, imports {}",
        contract.unwrap_or_default(),
        imports.join(", ")
    );
    Ok(())
}
