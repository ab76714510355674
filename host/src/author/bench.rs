//! `sluice plugin bench`: what a plugin costs, at the widths of real models.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::outcome::{Outcome, ask};
use super::random::Random;
use super::workbench::{Stages, Workbench, parse_params};
use super::{AuthorError, read, vocabulary};
use crate::engine::TokenId;
use crate::plugin::{Choices, Kind, OpenChain, Plugin, SequenceInfo, Vocabulary};

const PROMPT: usize = 256;
/// Positions that are not counted, then those that are.
const WARM_UP: u32 = 2;

/// What is measured.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// A component, or a core module that carries its component type
    pub file: PathBuf,
    /// Its parameters, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parse_params)]
    pub params: Map<String, Value>,
    /// Widths of a row
    #[arg(long, value_delimiter = ',', default_value = "32000,151936,262144",
          value_parser = clap::value_parser!(u32).range(512..=1_048_576))]
    pub vocabulary: Vec<u32>,
    /// Sequences, each in an instance of its own, that are asked in turn
    #[arg(long, value_delimiter = ',', default_value = "1,8,64",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub batch: Vec<u32>,
    /// Positions of each sequence
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub tokens: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// The figures of one width and batch.
#[derive(Debug, Serialize)]
struct Figures {
    vocabulary: u32,
    batch: u32,
    /// Mean time of a call with its edits applied.
    nanoseconds_per_call: u64,
    /// Mean bytes that a call carries over the boundary: into the guest.
    bytes_in_per_call: u64,
    /// Out of it.
    bytes_out_per_call: u64,
    /// Memory of an instance after the calls.
    instance_bytes: usize,
    /// Calls that were counted.
    calls: u64,
}

/// Measures and prints.
///
/// # Errors
/// When the plugin cannot be run, or fails.
pub(super) fn run(args: &BenchArgs) -> Result<bool, AuthorError> {
    let bench = Workbench::new()?;
    let plugin = bench.load(&read(&args.file)?)?;
    let stages = bench.chain(&plugin, &args.params)?;
    let sampler = match plugin.kind {
        Kind::Sampler => None,
        _ => Some(Stages(vec![bench.greedy()?])),
    };
    let mut figures = Vec::new();
    for &width in &args.vocabulary {
        let vocabulary = vocabulary::of_text(width)?;
        let beside = match &sampler {
            Some(sampler) => instance_bytes(&bench, sampler, &vocabulary)?,
            None => 0,
        };
        for &batch in &args.batch {
            let mut row = measure(&bench, &stages, &vocabulary, batch, args.tokens)?;
            row.instance_bytes = row.instance_bytes.saturating_sub(beside);
            figures.push(row);
        }
    }
    if args.json {
        println!("{}", json!({"plugin": plugin.name, "rows": figures}));
    } else {
        print!("{}", table(&plugin, &figures));
    }
    Ok(true)
}

/// Memory of a chain's instances once it has chosen a token.
fn instance_bytes(
    bench: &Workbench,
    stages: &Stages,
    vocabulary: &Arc<Vocabulary>,
) -> Result<usize, AuthorError> {
    measure(bench, stages, vocabulary, 1, 1).map(|figures| figures.instance_bytes)
}

/// One sequence in its own instance.
struct Sequence {
    chain: OpenChain,
    /// Tokens that it has not been told of.
    accepted: Vec<TokenId>,
    has_ended: bool,
}

fn measure(
    bench: &Workbench,
    stages: &Stages,
    vocabulary: &Arc<Vocabulary>,
    batch: u32,
    n_tokens: u32,
) -> Result<Figures, AuthorError> {
    let width = vocabulary.info().vocabulary_size;
    let before = bench.runtime().memory_bytes();
    let mut sequences = (0..batch)
        .map(|row| open(bench, stages, vocabulary, row, n_tokens))
        .collect::<Result<Vec<_>, _>>()?;
    let mut random = Random::new(1, 0);
    let rows: Vec<_> = (0..4).map(|_| random.row(width as usize)).collect();
    let mut warm = Sums::default();
    for position in 0..WARM_UP + n_tokens {
        if position == WARM_UP {
            warm = Sums::of(&sequences);
        }
        for (row, sequence) in (0..).zip(&mut sequences) {
            sequence.step(&rows[(position as usize + row) % rows.len()])?;
        }
    }
    let sums = Sums::of(&sequences);
    let calls = sums.calls - warm.calls;
    if calls == 0 {
        let message = format!("all {batch} sequences ended within {WARM_UP} calls");
        return Err(AuthorError::Usage(message));
    }
    let taken = bench.runtime().memory_bytes() - before;
    Ok(Figures {
        vocabulary: width,
        batch,
        nanoseconds_per_call: (sums.microseconds - warm.microseconds) * 1000 / calls,
        bytes_in_per_call: (sums.in_bytes - warm.in_bytes) / calls,
        bytes_out_per_call: (sums.out_bytes - warm.out_bytes) / calls,
        instance_bytes: taken / batch as usize,
        calls,
    })
}

fn open(
    bench: &Workbench,
    stages: &Stages,
    vocabulary: &Arc<Vocabulary>,
    row: u32,
    n_tokens: u32,
) -> Result<Sequence, AuthorError> {
    let end = vocabulary.info().end_of_sequence.clone();
    let n_texts = vocabulary.info().tokenizer_size - 1;
    let info = SequenceInfo {
        prompt: Random::new(2, row.into()).tokens(PROMPT, n_texts),
        max_tokens: WARM_UP + n_tokens,
        end_ids: end,
    };
    let choices = Choices {
        n: 1,
        seed: row.into(),
        explain: false,
    };
    let mut chains = bench.open(vocabulary, stages, &info, choices)?;
    Ok(Sequence {
        chain: chains.remove(0),
        accepted: Vec::new(),
        has_ended: false,
    })
}

impl Sequence {
    fn step(&mut self, row: &[f32]) -> Result<(), AuthorError> {
        if self.has_ended {
            return Ok(());
        }
        match ask(&mut self.chain, &self.accepted, row) {
            Outcome::Chose { token, .. } => self.accepted = vec![token],
            Outcome::Forced(tokens) => self.accepted = tokens,
            Outcome::Stopped => self.has_ended = true,
            Outcome::Failed(fault) => return Err(fault.into()),
        }
        Ok(())
    }
}

/// What the plugin's calls came to in all sequences.
#[derive(Default)]
struct Sums {
    calls: u64,
    microseconds: u64,
    in_bytes: u64,
    out_bytes: u64,
}

impl Sums {
    fn of(sequences: &[Sequence]) -> Self {
        let mut sums = Self::default();
        for sequence in sequences {
            let crossed = sequence.chain.crossed();
            sums.in_bytes += crossed.in_bytes;
            sums.out_bytes += crossed.out_bytes;
            if let Some(stage) = sequence.chain.report().stages().first() {
                sums.calls += stage.calls;
                sums.microseconds += stage.microseconds;
            }
        }
        sums
    }
}

/// A table for people.
fn table(plugin: &Plugin, figures: &[Figures]) -> String {
    let mut table = format!(
        "{} {}, a {}\n\n\
         | vocabulary | batch | ns per call | bytes in | bytes out | MiB per instance |\n\
         |---|---|---|---|---|---|\n",
        plugin.name, plugin.version, plugin.kind
    );
    for f in figures {
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {:.1} |",
            f.vocabulary,
            f.batch,
            f.nanoseconds_per_call,
            f.bytes_in_per_call,
            f.bytes_out_per_call,
            f.instance_bytes as f64 / f64::from(1 << 20)
        );
    }
    table
}
