//! The contract's imports outside a component, where the harness serves them.
//! Inside one they are generated, with the same names and types.

use sluice_contract::{cases::Failure, edits::EditError};

use sluice_contract::phase::{Decision, Phase};

use super::host;

/// Changes to the next logits row, applied in the order in which they are made.
/// A banned token stays banned: no later edit of any stage raises it.
///
/// Allowed in `plan` and `process`. An id at or above the vocabulary's size, a
/// value that is NaN or positive infinity, a divisor that is not finite and
/// above zero, or lists of unequal length end the sequence.
pub mod edits {
    use sluice_contract::edits::Edits;

    use super::{EditError, Failure, Phase, host};
    use crate::TokenId;

    fn record(import: &str, record: impl FnOnce(&mut Edits, u32) -> Result<(), EditError>) {
        host::serve(import, &[Phase::Plan, Phase::Process], |host| {
            let size = host.vocabulary.size();
            let recorded = record(&mut host.edits, size);
            recorded.map_err(|error| Failure::new("invalid_edit", error.to_string()))
        });
    }

    /// `logit[ids[i]] += values[i]`. Repeated ids accumulate. Negative infinity
    /// bans.
    pub fn add(ids: &[TokenId], values: &[f32]) {
        record("add", |edits, size| {
            edits.add(size, ids.to_vec(), values.to_vec())
        });
    }

    /// `logit[i] += value` for each id whose bit is 1; words as in [`mask`].
    pub fn add_masked(words: &[u32], value: f32) {
        record("add-masked", |edits, size| {
            edits.add_masked(size, words.to_vec(), value)
        });
    }

    /// Sign-aware scaling: a logit above zero is divided by `divisor`, any other
    /// is multiplied by it. Once per distinct id.
    pub fn scale(ids: &[TokenId], divisor: f32) {
        record("scale", |edits, size| {
            edits.scale(size, ids.to_vec(), divisor)
        });
    }

    /// Bans these ids.
    pub fn deny(ids: &[TokenId]) {
        record("deny", |edits, size| edits.deny(size, ids.to_vec()));
    }

    /// Bans every other id.
    pub fn allow(ids: &[TokenId]) {
        record("allow", |edits, size| edits.allow(size, ids.to_vec()));
    }

    /// Bans each id whose bit is 0. Bit `i % 32` of `words[i / 32]`, least
    /// significant first; missing words count as 0, bits past the last id are
    /// ignored.
    pub fn mask(words: &[u32]) {
        record("mask", |edits, size| edits.mask(size, words.to_vec()));
    }
}

/// What may happen at this position instead of sampling: one call in a `plan`,
/// whose edits are then without effect.
///
/// The first stage of the chain that calls one decides: later stages are not
/// asked about this position and see the tokens in their next call.
pub mod control {
    use super::{Decision, Failure, Phase, host};
    use crate::TokenId;

    fn decide(import: &str, decision: Decision) {
        host::serve(import, &[Phase::Plan], |host| {
            if host.decision.is_some() {
                let message = format!("`{import}` was called after this call had decided already");
                return Err(Failure::new("invalid_decision", message));
            }
            host.decision = Some(decision);
            Ok(())
        });
    }

    /// Appends these tokens, at least one. The list is cut after the first id
    /// that ends the sequence and at the length limit. Bans do not apply.
    pub fn force(ids: &[TokenId]) {
        host::serve("force", Phase::VOCABULARY, |host| {
            let invalid = |message| Err(Failure::new("invalid_decision", message));
            let size = host.vocabulary.size();
            if ids.is_empty() {
                return invalid("`force` was given an empty list".to_owned());
            }
            match ids.iter().find(|&&id| id >= size) {
                Some(id) => invalid(format!(
                    "`force` was given the id {id}, the vocabulary has {size}"
                )),
                None => Ok(()),
            }
        });
        decide("force", Decision::Force(ids.to_vec()));
    }

    /// Ends the sequence here. Finish reason `stop`.
    pub fn stop() {
        decide("stop", Decision::Stop);
    }
}

/// The logits row as the stages before this one left it. Allowed in `process`
/// and `sample`.
pub mod logits {
    use super::{Failure, Phase, host};
    use crate::ranking::Row;

    pub use crate::bindings::host::sluice::sampling::logits::Candidates;

    fn read<T>(import: &str, read: impl FnOnce(&[f32]) -> Result<T, Failure>) -> T {
        host::serve(import, &[Phase::Process, Phase::Sample], |host| {
            read(&host.row)
        })
    }

    /// The `k` best tokens.
    pub fn top(k: u32) -> Candidates {
        read("top", |row| Ok(row.top(k)))
    }

    /// ln of the sum of exp(logit / temperature) over all tokens not banned: a
    /// token's probability is exp(logit / temperature - this), whichever tokens
    /// were read. `temperature` is finite and above zero.
    pub fn log_sum_exp(temperature: f32) -> f64 {
        read("log-sum-exp", |row| {
            if temperature.is_finite() && temperature > 0.0 {
                return Ok(row.log_sum_exp(temperature));
            }
            let message = format!(
                "`log-sum-exp` was given the temperature {temperature}, which is not finite and \
                 above zero"
            );
            Err(Failure::new("invalid_call", message))
        })
    }

    /// The whole row, as many values as the vocabulary has; negative infinity
    /// is banned.
    pub fn row() -> Vec<f32> {
        read("row", |row| Ok(row.to_vec()))
    }
}

pub(crate) mod random {
    use super::{Phase, host};

    /// 64 random bits that depend on nothing but the request's seed, the choice,
    /// the position, the stage and `draw`.
    pub fn bits(draw: u32) -> u64 {
        host::serve("bits", &[Phase::Process, Phase::Sample], |host| {
            Ok(host.chance.bits(draw))
        })
    }
}

/// The tokenizer, read only.
pub mod vocabulary {
    use super::{Failure, Phase, host};
    use crate::{ModelInfo, TokenId};

    /// Facts about the loaded model.
    pub fn model() -> ModelInfo {
        host::serve("model", Phase::VOCABULARY, |host| {
            Ok(host.vocabulary.model())
        })
    }

    /// The bytes a token stands for. Empty for control and padding ids, which
    /// are never shown; a special token that is shown, such as `</think>` of
    /// some models, has its text. A token may hold part of a UTF-8 character.
    pub fn token_bytes(id: TokenId) -> Vec<u8> {
        host::serve("token-bytes", Phase::VOCABULARY, |host| {
            let size = host.vocabulary.size();
            let bytes = host.vocabulary.texts.get(id as usize).cloned();
            bytes.ok_or_else(|| {
                let message =
                    format!("`token-bytes` was given the id {id}, the vocabulary has {size}");
                Failure::new("invalid_call", message)
            })
        })
    }

    /// Every token's bytes in one call: token `i` is
    /// `bytes[offsets[i]..offsets[i + 1]]`, for `i` below the vocabulary's size.
    pub fn all_token_bytes() -> (Vec<u32>, Vec<u8>) {
        host::serve("all-token-bytes", Phase::VOCABULARY, |host| {
            let (mut offsets, mut bytes) = (vec![0], Vec::new());
            for text in &host.vocabulary.texts {
                bytes.extend_from_slice(text);
                offsets.push(bytes.len() as u32);
            }
            Ok((offsets, bytes))
        })
    }

    /// Special tokens with the text that names them, such as `</think>`.
    pub fn special_tokens() -> Vec<(TokenId, String)> {
        host::serve("special-tokens", Phase::VOCABULARY, |host| {
            Ok(host.vocabulary.special.clone())
        })
    }

    /// Tokenizes text without adding special tokens, and without reading any in
    /// it: `</think>` becomes ordinary tokens.
    pub fn encode(text: &str) -> Vec<TokenId> {
        host::serve("encode", Phase::VOCABULARY, |host| {
            Ok(host.vocabulary.encode(text))
        })
    }
}

/// Messages for the plugin's author, shown with the request that caused them.
pub mod log {
    use super::host;

    pub use crate::bindings::host::sluice::sampling::log::Level;

    /// Writes a message.
    pub fn write(level: Level, message: &str) {
        host::write(level, message);
    }
}
