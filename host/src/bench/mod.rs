//! `sluice bench`: how long a decode step takes at a batch size, and how much
//! of it the chain takes.
//!
//! The arms run in turn, round after round, on one engine, so that a slow
//! minute of the machine meets all of them.

mod serve;

use crate::{
    assemble::{AssembleError, assemble},
    config::ModelConfig,
    engine::{
        Chain, EVENT_BUFFER, EngineConfig, Event, Handle, Stats, Submission, SubmitError, TokenId,
        fake,
    },
    http::{Access, RequestLimits, Web},
    plugin::{Choices, Limits, OpenError, Registry, Runtime, SequenceInfo, StageRef, Vocabulary},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::Receiver;

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// Batch sizes.
    #[arg(long, value_delimiter = ',', default_value = "1,8,16")]
    pub batch: Vec<usize>,
    /// Chains, see `BENCHMARKS.md`.
    #[arg(long, value_delimiter = ',', default_value = "none,greedy,default")]
    pub chain: Vec<Arm>,
    /// Tokens of each prompt.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Steps measured in each round.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Rounds; the median over all of their steps counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: serve::ServeArgs,
}

/// Who chooses the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arm {
    /// No plugin: the largest logit, found natively. Exists in this command
    /// alone.
    None,
    /// The default chain at temperature 0.
    Greedy,
    /// The default chain with three penalties, a bias, temperature, top-k and
    /// top-p.
    Default,
}

impl Arm {
    /// The fields of a request with this chain.
    fn fields(self) -> Value {
        match self {
            Self::None | Self::Greedy => json!({"temperature": 0}),
            Self::Default => json!({
                "logit_bias": {"100": -1.5, "200": 0.5}, "repetition_penalty": 1.1,
                "presence_penalty": 0.5, "frequency_penalty": 0.2, "temperature": 0.8,
                "top_k": 40, "top_p": 0.95,
            }),
        }
    }

    fn stages(self) -> Vec<(&'static str, Value)> {
        match self {
            Self::None => vec![],
            Self::Greedy => vec![
                ("rules", json!({})),
                ("penalties", json!({})),
                ("sampler", json!({"temperature": 0})),
            ],
            Self::Default => vec![
                ("rules", json!({"logit_bias": {"100": -1.5, "200": 0.5}})),
                (
                    "penalties",
                    json!({
                        "repetition_penalty": 1.1,
                        "presence_penalty": 0.5,
                        "frequency_penalty": 0.2,
                    }),
                ),
                (
                    "sampler",
                    json!({"temperature": 0.8, "top_k": 40, "top_p": 0.95}),
                ),
            ],
        }
    }
}

/// What a bench works on.
struct Bench {
    engine: Handle,
    runtime: Arc<Runtime>,
    registry: Arc<Registry>,
    vocabulary: Arc<Vocabulary>,
    /// Tokens that prompts are cut from; at least one.
    text: Vec<TokenId>,
}

/// Why a bench could not run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("the server at {0}")]
    Server(String),
    #[error("no plugin is named `{0}`")]
    NoPlugin(&'static str),
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error("a sequence ended early: {0}")]
    Ended(String),
}

/// The figures of one batch size and chain.
#[derive(Debug, Serialize)]
struct Figures {
    batch: usize,
    chain: Arm,
    /// Median wall time of a step, from token to token.
    step_ms_median: f64,
    /// The step that one in ten is faster than.
    step_ms_p10: f64,
    /// The step that one in ten is slower than.
    step_ms_p90: f64,
    /// Tokens of all rows per second, from the median.
    tokens_per_second: f64,
    /// Part of the steps' time in which the engine waited for chains.
    chain_share: f64,
}

#[derive(Default)]
struct Samples {
    steps: Vec<Duration>,
    step: Duration,
    chain: Duration,
}

/// Measures and prints: the loaded model, or a running server.
///
/// # Errors
/// When the model cannot be loaded, a chain not opened, or a sequence ends
/// early; when the server cannot be reached or does not answer as it should.
pub fn run(model: &ModelConfig, args: &BenchArgs) -> Result<(), BenchError> {
    match &args.server.serve {
        Some(url) => serve::run(url, args),
        None => steps(model, args),
    }
}

fn steps(model: &ModelConfig, args: &BenchArgs) -> Result<(), BenchError> {
    let largest = args.batch.iter().copied().max().unwrap_or(1);
    let per_row = args.prompt_tokens as usize * (1 + largest) + args.tokens as usize;
    let defaults = EngineConfig::default();
    let engine = EngineConfig {
        max_batch: largest,
        // A prompt of an earlier round is computed again.
        prefix_bytes: 0,
        // A step yields a token of each row.
        draft_rows: 0,
        kv_tokens: defaults.kv_tokens.max(largest * (2 * per_row + 8)),
        ..defaults
    };
    let (service, thread) = assemble(
        model,
        engine,
        Limits::default(),
        RequestLimits::default(),
        Access::without_tokens(true),
        Web::default(),
        None,
    )?;
    let bench = Bench {
        engine: service.engine.clone(),
        runtime: service.runtime.clone(),
        registry: service.registry.clone(),
        vocabulary: service.model.vocabulary().clone(),
        text: (1000..1500).collect(),
    };
    drop(service);
    let arms = args.batch.len() * args.chain.len() * (args.rounds as usize + 1);
    let bar = indicatif::ProgressBar::new(arms as u64);
    let figures = bench.measure_all(args, || bar.inc(1))?;
    bar.finish_and_clear();
    if args.json {
        println!("{}", json!({"rows": figures}));
    } else {
        print!("{}", table(&figures));
    }
    drop(bench);
    // MLX must not be torn down under its own thread.
    thread
        .join()
        .map_err(|_| BenchError::Ended("the engine's thread panicked".into()))
}

impl Bench {
    /// Runs all rounds. `progress` is told of each measured arm.
    fn measure_all(
        &self,
        args: &BenchArgs,
        mut progress: impl FnMut(),
    ) -> Result<Vec<Figures>, BenchError> {
        let arms: Vec<_> = args
            .batch
            .iter()
            .flat_map(|&batch| args.chain.iter().map(move |&chain| (batch, chain)))
            .collect();
        let mut samples: Vec<Samples> = arms.iter().map(|_| Samples::default()).collect();
        // The first round warms up and is not counted.
        for round in 0..=args.rounds {
            for (&(batch, chain), samples) in arms.iter().zip(&mut samples) {
                let seen = self.measure(batch, chain, args)?;
                if round > 0 {
                    samples.steps.extend(seen.steps);
                    samples.step += seen.step;
                    samples.chain += seen.chain;
                }
                progress();
            }
        }
        Ok(arms.into_iter().zip(samples).map(figures).collect())
    }

    fn measure(&self, batch: usize, chain: Arm, args: &BenchArgs) -> Result<Samples, BenchError> {
        let mut rows = (0..batch)
            .map(|row| self.start(row, chain, args))
            .collect::<Result<Vec<_>, _>>()?;
        for row in &mut rows {
            next(row)?;
        }
        // All rows decode now. The last one to join has the most tokens left.
        let before = self.engine.stats();
        let mut steps = Vec::with_capacity(args.tokens as usize);
        if let Some(row) = rows.last_mut() {
            let mut last = Instant::now();
            for _ in 0..args.tokens {
                next(row)?;
                let now = Instant::now();
                steps.push(now - last);
                last = now;
            }
        }
        let Stats { step, chain, .. } = self.engine.stats();
        Ok(Samples {
            steps,
            step: step.saturating_sub(before.step),
            chain: chain.saturating_sub(before.chain),
        })
    }

    fn start(&self, row: usize, arm: Arm, args: &BenchArgs) -> Result<Receiver<Event>, BenchError> {
        let prompt: Vec<TokenId> = self
            .text
            .iter()
            .cycle()
            .skip(row * 7)
            .take(args.prompt_tokens as usize)
            .copied()
            .collect();
        // Rows that joined earlier are ahead by the steps of later prompts.
        let slack = 8 + (args.batch.iter().max().unwrap_or(&1) * prompt.len()) as u32;
        let context = self.engine.model_info().context_length;
        let max_tokens = (args.tokens + slack).min(context.saturating_sub(args.prompt_tokens));
        let chain = self.open(arm, row, &prompt, max_tokens)?;
        let (events, receiver) = tokio::sync::mpsc::channel(EVENT_BUFFER.max(max_tokens as usize));
        self.engine.submit(Submission {
            prompt,
            max_tokens,
            end_ids: vec![],
            chain,
            logprobs: None,
            events,
        })?;
        Ok(receiver)
    }

    fn open(
        &self,
        arm: Arm,
        row: usize,
        prompt: &[TokenId],
        max_tokens: u32,
    ) -> Result<Box<dyn Chain>, BenchError> {
        if arm == Arm::None {
            return Ok(fake::greedy());
        }
        let stages = arm
            .stages()
            .into_iter()
            .map(|(name, params)| {
                let plugin = self.registry.get(name).ok_or(BenchError::NoPlugin(name))?;
                let params = params.as_object().cloned().unwrap_or_default();
                Ok(StageRef::new(plugin, params))
            })
            .collect::<Result<Vec<_>, BenchError>>()?;
        let info = SequenceInfo {
            prompt: prompt.to_vec(),
            max_tokens,
            end_ids: vec![],
        };
        let choices = Choices {
            n: 1,
            seed: row as i64,
            explain: false,
        };
        let mut chains = self
            .runtime
            .open(&self.vocabulary, &stages, &info, choices)?;
        Ok(Box::new(chains.remove(0)))
    }
}

/// Waits for the next token.
fn next(row: &mut Receiver<Event>) -> Result<(), BenchError> {
    match row.blocking_recv() {
        Some(Event::Tokens(_)) => Ok(()),
        Some(other) => Err(BenchError::Ended(format!("{other:?}"))),
        None => Err(BenchError::Ended("the engine stopped".into())),
    }
}

/// The time, in milliseconds, that this share of the sorted ones is within.
fn quantile(sorted: &[Duration], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let index = (share * last as f64).round() as usize;
    sorted
        .get(index)
        .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

fn figures(((batch, chain), mut samples): ((usize, Arm), Samples)) -> Figures {
    samples.steps.sort_unstable();
    let at = |share: f64| quantile(&samples.steps, share);
    let median = at(0.5);
    Figures {
        batch,
        chain,
        step_ms_median: median,
        step_ms_p10: at(0.1),
        step_ms_p90: at(0.9),
        tokens_per_second: batch as f64 * 1e3 / median,
        chain_share: samples.chain.as_secs_f64() / samples.step.as_secs_f64(),
    }
}

/// A table for people.
fn table(figures: &[Figures]) -> String {
    use std::fmt::Write;
    let mut table = String::from(
        "| batch | chain | ms per step | 10 % … 90 % | tokens/s | chain's share |\n\
         |---|---|---|---|---|---|\n",
    );
    for f in figures {
        let chain = format!("{:?}", f.chain).to_lowercase();
        let _ = writeln!(
            table,
            "| {} | {chain} | {:.2} | {:.2} … {:.2} | {:.0} | {:.2} % |",
            f.batch,
            f.step_ms_median,
            f.step_ms_p10,
            f.step_ms_p90,
            f.tokens_per_second,
            f.chain_share * 100.0,
        );
    }
    table
}
