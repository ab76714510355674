//! `sluice perplexity`: how well the model predicts given texts.

mod documents;
mod windows;

use std::path::PathBuf;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream;
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::assemble::{AssembleError, Loaded, load};
use crate::config::ModelConfig;
use crate::engine::{
    EVENT_BUFFER, EngineConfig, Event, FinishReason, Handle, LogprobOptions, LogprobsOf,
    Submission, SubmitError, TokenId, fake,
};
use crate::http::ServedModel;
use crate::text::{Tokenizer, TokenizerError};
use documents::{DocumentError, Source};
use windows::Policy;

/// Windows that are computed at once.
const AT_ONCE: usize = 4;

/// What is scored, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct PerplexityArgs {
    /// Texts: each file is a document, or with the name `….jsonl` each line
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Field of a JSON line that has the text
    #[arg(long, default_value = "text", value_name = "NAME")]
    pub field: String,
    /// Tokens of a window, at most what the model's context holds
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(2..))]
    pub window: u32,
    /// Most tokens scored in each window but the first, the rest of it being
    /// context; below --window. One less than it gives evaluation harnesses'
    /// rolling windows. Without it windows have nothing in common, and the first
    /// token of each is not scored
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub stride: Option<u32>,
    /// Id put before each document, so that its first token is scored too
    /// [default: the model's BOS, if it wants one]
    #[arg(long, value_name = "ID")]
    pub prefix_token: Option<TokenId>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum PerplexityError {
    #[error("--stride {stride} is not below --window {window}")]
    Stride { stride: u32, window: u32 },
    #[error("--window {window} exceeds the model's context of {context} tokens")]
    Window { window: u32, context: u32 },
    #[error("--prefix-token {id} is not one of the tokenizer's {size} ids")]
    Prefix { id: TokenId, size: u32 },
    #[error("there is no token to score: every document is shorter than two tokens")]
    Nothing,
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("a document cannot be tokenized: {0}")]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    #[error("cannot start: {0}")]
    Runtime(#[from] std::io::Error),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error("a window ended early: {0}")]
    Ended(String),
}

/// What was found. Logarithms are natural unless they say otherwise.
#[derive(Debug, Serialize)]
struct Figures {
    /// e to the mean negative logprob of the scored tokens.
    perplexity: f64,
    /// Of the perplexity, as if tokens were independent of each other.
    perplexity_standard_error: f64,
    mean_negative_logprob: f64,
    /// Negative log₂ of the probability of the scored tokens, by their bytes.
    bits_per_byte: f64,
    bits_per_token: f64,
    n_tokens_scored: usize,
    n_bytes_scored: usize,
    n_documents: usize,
    n_windows: usize,
}

/// Scores the files and prints what was found.
///
/// # Errors
/// When a file cannot be read, an option does not fit the model, or the model
/// fails.
pub fn run(model: &ModelConfig, args: &PerplexityArgs) -> Result<(), PerplexityError> {
    if let Some(stride) = args.stride.filter(|stride| *stride >= args.window) {
        let window = args.window;
        return Err(PerplexityError::Stride { stride, window });
    }
    let (mut sources, mut texts) = (Vec::new(), Vec::new());
    for path in &args.files {
        let (source, documents) = documents::read(path, &args.field)?;
        sources.push(source);
        texts.extend(documents);
    }
    let engine = EngineConfig {
        max_batch: AT_ONCE,
        // Logprobs of prompts are computed, never remembered.
        prefix_bytes: 0,
        ..EngineConfig::default()
    };
    let Loaded {
        model,
        engine,
        thread,
    } = load(model, engine)?;
    let started = Instant::now();
    let outcome = Run::new(engine, &model, args).and_then(|run| {
        let figures = run.score(&texts)?;
        Ok((figures, run.prefix))
    });
    let seconds = started.elapsed().as_secs_f64();
    // MLX must not be torn down under its own thread.
    let ended = thread.join();
    let (figures, prefix) = outcome?;
    ended.map_err(|_| PerplexityError::Ended("the engine's thread panicked".into()))?;
    if args.json {
        let report = json!({
            "result": figures,
            "policy": {
                "window": args.window,
                "stride": args.stride,
                "prefix_token": prefix,
            },
            "files": sources,
            "model": {
                "name": model.id(),
                "vocabulary_sha256": model.vocabulary().digest(),
                "vocabulary_size": model.vocabulary().info().vocabulary_size,
            },
            "versions": {
                "sluice": env!("CARGO_PKG_VERSION"),
                "mlx": crate::mlx::VERSION,
            },
            "seconds": seconds,
        });
        println!("{report:#}");
    } else {
        print!("{}", table(&figures, &sources, seconds));
    }
    Ok(())
}

struct Run<'a> {
    engine: Handle,
    tokenizer: &'a Tokenizer,
    policy: Policy,
    prefix: Option<TokenId>,
}

impl<'a> Run<'a> {
    fn new(
        engine: Handle,
        model: &'a ServedModel,
        args: &PerplexityArgs,
    ) -> Result<Self, PerplexityError> {
        let (window, context) = (args.window, engine.model_info().context_length);
        if window > context {
            return Err(PerplexityError::Window { window, context });
        }
        let tokenizer = model.tokenizer();
        let size = tokenizer.size();
        if let Some(id) = args.prefix_token.filter(|id| *id >= size) {
            return Err(PerplexityError::Prefix { id, size });
        }
        Ok(Self {
            engine,
            tokenizer,
            policy: Policy {
                window: window as usize,
                stride: args.stride.map(|stride| stride as usize),
            },
            prefix: args.prefix_token.or_else(|| tokenizer.bos()),
        })
    }

    fn score(&self, texts: &[String]) -> Result<Figures, PerplexityError> {
        // Window by window: its tokens, and how many at its end are scored.
        let mut windows: Vec<(Vec<TokenId>, usize)> = Vec::new();
        for text in texts {
            let mut tokens: Vec<TokenId> = self.prefix.into_iter().collect();
            tokens.extend(self.tokenizer.encode(text, false)?);
            for window in self.policy.windows(tokens.len()) {
                let of_window = tokens[window.tokens].to_vec();
                windows.push((of_window, window.scored.len()));
            }
        }
        let n_windows = windows.len();
        let n_tokens = windows.iter().map(|(_, scored)| *scored as u64).sum();
        let bar = indicatif::ProgressBar::new(n_tokens);
        let mut tally = Tally::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(async {
            let mut scored = stream::iter(windows)
                .map(|(tokens, n_scored)| self.window(tokens, n_scored))
                .buffered(AT_ONCE);
            while let Some(tokens) = scored.next().await {
                for (id, logprob) in tokens? {
                    tally.add(logprob, self.tokenizer.token_bytes(id).len());
                    bar.inc(1);
                }
            }
            Ok::<_, PerplexityError>(())
        })?;
        bar.finish_and_clear();
        tally.figures(texts.len(), n_windows)
    }

    /// The last `n_scored` tokens of a window with their logprobs.
    async fn window(
        &self,
        tokens: Vec<TokenId>,
        n_scored: usize,
    ) -> Result<Vec<(TokenId, f64)>, PerplexityError> {
        let skipped = tokens.len() - n_scored;
        let (events, mut receiver) = mpsc::channel(EVENT_BUFFER.max(tokens.len()));
        self.engine.submit(Submission {
            prompt: tokens,
            max_tokens: 0,
            end_ids: vec![],
            chain: fake::greedy(),
            logprobs: Some(LogprobOptions {
                n_top: 0,
                of: LogprobsOf::Raw,
                prompt: true,
            }),
            events,
        })?;
        let mut known = Vec::new();
        loop {
            match receiver.recv().await {
                Some(Event::Prompt(tokens)) => known.extend(tokens),
                Some(Event::Finished(FinishReason::Length)) => break,
                Some(other) => return Err(PerplexityError::Ended(format!("{other:?}"))),
                None => return Err(PerplexityError::Ended("the engine stopped".into())),
            }
        }
        let scored = known.into_iter().skip(skipped).map(|token| {
            let logprobs = token.logprobs.ok_or_else(|| {
                PerplexityError::Ended(format!("the token {} came without logprob", token.id))
            })?;
            Ok((token.id, logprobs.logprob))
        });
        scored.collect()
    }
}

/// The scored tokens until now.
#[derive(Default)]
struct Tally {
    n_tokens: usize,
    n_bytes: usize,
    /// Of negative logprobs, and of their squares.
    sum: f64,
    squares: f64,
}

impl Tally {
    fn add(&mut self, logprob: f64, n_bytes: usize) {
        self.n_tokens += 1;
        self.n_bytes += n_bytes;
        self.sum -= logprob;
        self.squares += logprob * logprob;
    }

    fn figures(&self, n_documents: usize, n_windows: usize) -> Result<Figures, PerplexityError> {
        if self.n_tokens == 0 {
            return Err(PerplexityError::Nothing);
        }
        let n = self.n_tokens as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        let perplexity = mean.exp();
        let bits = self.sum / std::f64::consts::LN_2;
        Ok(Figures {
            perplexity,
            perplexity_standard_error: perplexity * (variance / (n - 1.0).max(1.0)).sqrt(),
            mean_negative_logprob: mean,
            bits_per_byte: bits / self.n_bytes as f64,
            bits_per_token: bits / n,
            n_tokens_scored: self.n_tokens,
            n_bytes_scored: self.n_bytes,
            n_documents,
            n_windows,
        })
    }
}

fn table(figures: &Figures, sources: &[Source], seconds: f64) -> String {
    let Figures {
        perplexity,
        perplexity_standard_error,
        bits_per_byte,
        bits_per_token,
        n_tokens_scored,
        n_bytes_scored,
        n_documents,
        n_windows,
        ..
    } = figures;
    let rate = *n_tokens_scored as f64 / seconds;
    format!(
        "perplexity      {perplexity:.4} ± {perplexity_standard_error:.4}\n\
         bits per byte   {bits_per_byte:.4}\n\
         bits per token  {bits_per_token:.4}\n\
         scored          {n_tokens_scored} tokens of {n_bytes_scored} bytes, in {n_windows} \
         windows of {n_documents} documents, {} files\n\
         time            {seconds:.1} s, {rate:.0} tokens/s\n",
        sources.len()
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Two tokens of probability 1/2 and 1/8, of 1 and 3 bytes: 1 and 3 bits.
    #[test]
    fn figures_are_their_definitions() {
        let mut tally = Tally::default();
        tally.add(-(2_f64.ln()), 1);
        tally.add(-(8_f64.ln()), 3);
        let figures = tally.figures(1, 1).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        near(figures.perplexity, 4.0); // the geometric mean of 2 and 8
        near(figures.bits_per_token, 2.0);
        near(figures.bits_per_byte, 1.0);
        // Losses of ln 2 and 3 ln 2 vary by ln 2 around their mean: the standard
        // error of the mean is √(2 ln² 2 / 1) / √2.
        near(figures.perplexity_standard_error, 4.0 * 2_f64.ln());
        assert!(Tally::default().figures(3, 0).is_err());
    }
}
