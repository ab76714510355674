//! The imports of the contract, written once for the three kinds of plugin.

use sluice_kernels::row::Scanned;
use wasmtime::Result;

use super::bindings::{control, edits, log, logits, random, types, vocabulary};
use super::edits::Edits;
use super::fault::{HostFault, kind};
use super::state::HostState;
use sluice_contract::phase::{Decision, Phase};

use crate::engine::TokenId;

/// Longest text that `encode` takes, in bytes: the call cannot be interrupted,
/// and a tokenizer handles this much in some ten milliseconds.
const MAX_ENCODE_BYTES: usize = 64 * 1024;

impl types::Host for HostState {}

impl vocabulary::Host for HostState {
    fn model(&mut self) -> Result<types::ModelInfo> {
        let info = self.vocabulary("model")?.info();
        Ok(types::ModelInfo {
            vocabulary_size: info.vocabulary_size,
            tokenizer_size: info.tokenizer_size,
            end_of_sequence: info.end_of_sequence.clone(),
            context_length: info.context_length,
        })
    }

    fn token_bytes(&mut self, id: TokenId) -> Result<Vec<u8>> {
        let vocabulary = self.vocabulary("token-bytes")?;
        match vocabulary.token_bytes(id) {
            Some(bytes) => {
                let bytes = bytes.to_vec();
                self.crossed.enter(&bytes);
                Ok(bytes)
            }
            None => Err(HostFault::new(
                kind::INVALID_CALL,
                format!(
                    "`token-bytes` was given the id {id}, the vocabulary has {}",
                    vocabulary.info().vocabulary_size
                ),
            )
            .into()),
        }
    }

    fn all_token_bytes(&mut self) -> Result<(Vec<u32>, Vec<u8>)> {
        let (offsets, bytes) = self.vocabulary("all-token-bytes")?.all_token_bytes();
        let (offsets, bytes) = (offsets.to_vec(), bytes.to_vec());
        self.crossed.enter(&offsets);
        self.crossed.enter(&bytes);
        Ok((offsets, bytes))
    }

    fn special_tokens(&mut self) -> Result<Vec<(TokenId, String)>> {
        Ok(self.vocabulary("special-tokens")?.special_tokens().to_vec())
    }

    fn encode(&mut self, text: String) -> Result<Vec<TokenId>> {
        let vocabulary = self.vocabulary("encode")?;
        if text.len() > MAX_ENCODE_BYTES {
            return Err(HostFault::new(
                kind::INVALID_CALL,
                format!(
                    "`encode` was given {} bytes, the limit is {MAX_ENCODE_BYTES}",
                    text.len()
                ),
            )
            .into());
        }
        let ids = vocabulary.encode(&text);
        self.crossed.leave(text.as_bytes());
        self.crossed.enter(&ids);
        Ok(ids)
    }
}

impl HostState {
    /// Where an edit is recorded, and the number of ids there are.
    fn edits(&mut self, import: &str) -> Result<(u32, &mut Edits)> {
        self.only_in(import, &[Phase::Plan, Phase::Process])?;
        let vocabulary_size = self.vocabulary(import)?.info().vocabulary_size;
        Ok((vocabulary_size, &mut self.edits))
    }

    fn decide(&mut self, import: &str, decision: Decision) -> Result<()> {
        self.only_in(import, &[Phase::Plan])?;
        if self.decision.is_some() {
            return Err(HostFault::new(
                kind::INVALID_DECISION,
                format!("`{import}` was called after this call had decided already"),
            )
            .into());
        }
        self.decision = Some(decision);
        Ok(())
    }

    fn read_row<T>(&self, import: &str, read: impl FnOnce(Scanned<'_>) -> T) -> Result<T> {
        self.only_in(import, &[Phase::Process, Phase::Sample])?;
        Ok(self.row.read(read))
    }
}

impl edits::Host for HostState {
    fn add(&mut self, ids: Vec<TokenId>, values: Vec<f32>) -> Result<()> {
        self.crossed.leave(&ids);
        self.crossed.leave(&values);
        let (vocabulary_size, edits) = self.edits("add")?;
        Ok(edits.add(vocabulary_size, ids, values)?)
    }

    fn add_masked(&mut self, words: Vec<u32>, value: f32) -> Result<()> {
        self.crossed.leave(&words);
        self.crossed.leave(&[value]);
        let (vocabulary_size, edits) = self.edits("add-masked")?;
        Ok(edits.add_masked(vocabulary_size, words, value)?)
    }

    fn scale(&mut self, ids: Vec<TokenId>, divisor: f32) -> Result<()> {
        self.crossed.leave(&ids);
        self.crossed.leave(&[divisor]);
        let (vocabulary_size, edits) = self.edits("scale")?;
        Ok(edits.scale(vocabulary_size, ids, divisor)?)
    }

    fn deny(&mut self, ids: Vec<TokenId>) -> Result<()> {
        self.crossed.leave(&ids);
        let (vocabulary_size, edits) = self.edits("deny")?;
        Ok(edits.deny(vocabulary_size, ids)?)
    }

    fn allow(&mut self, ids: Vec<TokenId>) -> Result<()> {
        self.crossed.leave(&ids);
        let (vocabulary_size, edits) = self.edits("allow")?;
        Ok(edits.allow(vocabulary_size, ids)?)
    }

    fn mask(&mut self, words: Vec<u32>) -> Result<()> {
        self.crossed.leave(&words);
        let (vocabulary_size, edits) = self.edits("mask")?;
        Ok(edits.mask(vocabulary_size, words)?)
    }
}

impl control::Host for HostState {
    fn force(&mut self, ids: Vec<TokenId>) -> Result<()> {
        let vocabulary_size = self.vocabulary("force")?.info().vocabulary_size;
        if ids.is_empty() {
            let message = "`force` was given an empty list";
            return Err(HostFault::new(kind::INVALID_DECISION, message).into());
        }
        if let Some(id) = ids.iter().find(|&&id| id >= vocabulary_size) {
            let message =
                format!("`force` was given the id {id}, the vocabulary has {vocabulary_size}");
            return Err(HostFault::new(kind::INVALID_DECISION, message).into());
        }
        self.crossed.leave(&ids);
        self.decide("force", Decision::Force(ids))
    }

    fn stop(&mut self) -> Result<()> {
        self.decide("stop", Decision::Stop)
    }
}

impl logits::Host for HostState {
    fn top(&mut self, k: u32) -> Result<logits::Candidates> {
        let (mut ids, mut logits) = (Vec::new(), Vec::new());
        self.read_row("top", |row| {
            row.top_k(k as usize, &mut ids, &mut logits);
        })?;
        self.crossed.leave(&[k]);
        self.crossed.enter(&ids);
        self.crossed.enter(&logits);
        Ok(logits::Candidates { ids, logits })
    }

    fn log_sum_exp(&mut self, temperature: f32) -> Result<f64> {
        self.only_in("log-sum-exp", &[Phase::Process, Phase::Sample])?;
        if !temperature.is_finite() || temperature <= 0.0 {
            return Err(HostFault::new(
                kind::INVALID_CALL,
                format!(
                    "`log-sum-exp` was given the temperature {temperature}, which is not finite \
                     and above zero"
                ),
            )
            .into());
        }
        let sum = self.row.read(|row| row.log_sum_exp(temperature));
        self.crossed.leave(&[temperature]);
        self.crossed.enter(&[sum]);
        Ok(sum)
    }

    fn row(&mut self) -> Result<Vec<f32>> {
        let row = self.read_row("row", |row| row.values().to_vec())?;
        self.crossed.enter(&row);
        Ok(row)
    }
}

impl random::Host for HostState {
    fn bits(&mut self, draw: u32) -> Result<u64> {
        self.only_in("bits", &[Phase::Process, Phase::Sample])?;
        let bits = self.chance.bits(draw);
        self.crossed.leave(&[draw]);
        self.crossed.enter(&[bits]);
        Ok(bits)
    }
}

impl log::Host for HostState {
    fn write(&mut self, level: log::Level, message: String) -> Result<()> {
        let level = match level {
            log::Level::Debug => tracing::Level::DEBUG,
            log::Level::Info => tracing::Level::INFO,
            log::Level::Warn => tracing::Level::WARN,
            log::Level::Error => tracing::Level::ERROR,
        };
        self.crossed.leave(message.as_bytes());
        self.log.write(level, message);
        Ok(())
    }
}
