//! The engine that benches in this process work on.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;

use super::arms::{Chooser, NativeSequence};
use super::clock::Clock;
use super::{Arm, BenchArgs, BenchError};
use crate::assemble::assemble;
use crate::config::ModelConfig;
use crate::engine::{Chain, EVENT_BUFFER, EngineConfig, Event, Handle, Submission, TokenId};
use crate::http::{Access, RequestLimits, Web};
use crate::plugin::{Choices, Limits, Registry, Runtime, SequenceInfo, StageRef, Vocabulary};

/// Ids that prompts are cut from.
const TEXT: std::ops::Range<TokenId> = 1000..2500;

/// What a bench works on.
pub(super) struct Bench {
    pub(super) engine: Handle,
    runtime: Arc<Runtime>,
    registry: Arc<Registry>,
    vocabulary: Arc<Vocabulary>,
}

/// One row of a batch that decodes.
pub(super) struct DecodingRow {
    events: Receiver<Event>,
    pub(super) clock: Clock,
}

impl Bench {
    /// Loads the model, on a thread that ends after the bench is dropped.
    pub(super) fn new(
        model: &ModelConfig,
        args: &BenchArgs,
    ) -> Result<(Self, JoinHandle<()>), BenchError> {
        let largest = args.batch.iter().copied().max().unwrap_or(1);
        let prompts = args.prompt_tokens.iter().chain(&args.prefill);
        let longest = prompts.copied().max().unwrap_or(1);
        let defaults = EngineConfig::default();
        let per_row = longest + args.tokens + ahead(largest, longest);
        let config = EngineConfig {
            max_batch: largest,
            // A prompt of an earlier round is computed again.
            prefix_bytes: 0,
            // A step yields a token of each row.
            draft_rows: 0,
            kv_tokens: defaults.kv_tokens.max(2 * largest * per_row as usize),
            ..defaults
        };
        let (service, thread) = assemble(
            model,
            config,
            Limits {
                // No busy moment of the machine ends a sequence.
                call: Duration::from_secs(5),
                ..Limits::default()
            },
            RequestLimits::default(),
            Access::without_tokens(true),
            Web::default(),
            None,
        )?;
        let bench = Self {
            engine: service.engine.clone(),
            runtime: service.runtime.clone(),
            registry: service.registry.clone(),
            vocabulary: service.model.vocabulary().clone(),
        };
        Ok((bench, thread))
    }

    /// The prompt of a row of a batch.
    fn prompt(&self, row: usize, n_tokens: u32) -> Vec<TokenId> {
        let size = self.engine.model_info().tokenizer_size.max(1);
        let ids = TEXT.cycle().skip(row * 7).take(n_tokens as usize);
        ids.map(|id| id % size).collect()
    }

    /// Submits a row that decodes `tokens` steps beside all others of a batch.
    /// The clock of the last one notes them.
    pub(super) fn start(
        &self,
        arm: &Arm,
        batch: usize,
        row: usize,
        prompt_tokens: u32,
        tokens: u32,
    ) -> Result<DecodingRow, BenchError> {
        let context = self.engine.model_info().context_length;
        let most = context.saturating_sub(prompt_tokens);
        if tokens > most {
            return Err(BenchError::TooLong {
                prompt: prompt_tokens,
                tokens,
                context,
            });
        }
        let prompt = self.prompt(row, prompt_tokens);
        let max_tokens = (tokens + ahead(batch, prompt_tokens)).min(most);
        let clock = Clock::default();
        let mut chain = self.open(arm, row, &prompt, max_tokens)?;
        if row + 1 == batch {
            // What noting takes counts for the chain.
            chain = clock.around(chain, self.engine.clone());
        }
        let (events, receiver) = tokio::sync::mpsc::channel(EVENT_BUFFER.max(max_tokens as usize));
        self.engine.submit(Submission {
            prompt,
            max_tokens,
            end_ids: vec![],
            chain,
            logprobs: None,
            events,
        })?;
        Ok(DecodingRow {
            events: receiver,
            clock,
        })
    }

    /// Opens the chain of a row.
    pub(super) fn open(
        &self,
        arm: &Arm,
        row: usize,
        prompt: &[TokenId],
        max_tokens: u32,
    ) -> Result<Box<dyn Chain>, BenchError> {
        let seed = row as i64;
        if let Chooser::Native(open) = arm.chooser {
            return Ok(open(&NativeSequence {
                prompt,
                vocabulary_size: self.engine.model_info().vocabulary_size as usize,
                seed,
            }));
        }
        let stages = self.stages(arm, row)?;
        let info = SequenceInfo {
            prompt: prompt.to_vec(),
            max_tokens,
            end_ids: vec![],
        };
        let choices = Choices {
            n: 1,
            seed,
            explain: false,
        };
        let mut chains = self
            .runtime
            .open(&self.vocabulary, &stages, &info, choices)?;
        Ok(Box::new(chains.remove(0)))
    }

    /// The stages of a row, whose parameters their plugins take.
    pub(super) fn stages(&self, arm: &Arm, row: usize) -> Result<Vec<StageRef>, BenchError> {
        let stages = arm.stages(row)?.into_iter();
        stages
            .map(|(name, params)| {
                let plugin = self.registry.get(name).ok_or(BenchError::NoPlugin(name))?;
                plugin
                    .validate_params(&params)
                    .map_err(|error| BenchError::Refused {
                        plugin: name,
                        error,
                    })?;
                let params = params.as_object().cloned().unwrap_or_default();
                Ok(StageRef::new(plugin, params))
            })
            .collect()
    }
}

/// Steps that a row may have to decode before the last of its batch joins it.
fn ahead(batch: usize, prompt_tokens: u32) -> u32 {
    let chunk = EngineConfig::default().prefill_chunk as u32;
    8 + batch as u32 * (2 + prompt_tokens.div_ceil(chunk))
}

impl DecodingRow {
    /// Waits for the next token.
    pub(super) fn next(&mut self) -> Result<TokenId, BenchError> {
        match self.events.blocking_recv() {
            Some(Event::Tokens(tokens)) => match tokens[..] {
                [ref token] => Ok(token.id),
                _ => Err(BenchError::Ended(format!("{} tokens came", tokens.len()))),
            },
            Some(other) => Err(BenchError::Ended(format!("{other:?}"))),
            None => Err(BenchError::Ended("the engine stopped".into())),
        }
    }
}
