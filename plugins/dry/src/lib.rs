//! `dry`: don't repeat yourself. A token that would lengthen a repeat of the
//! text's end loses the more the longer the repeat is.
//! p-e-w 2024, text-generation-webui, pull request 5677.

#![cfg_attr(test, allow(clippy::float_cmp, reason = "worked values are exact"))]

mod breakers;
mod repeats;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    schemars::{self, JsonSchema},
    vocabulary,
};

use crate::{breakers::Breakers, repeats::Strength};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[allow(clippy::struct_field_names, reason = "the names of a request's fields")]
struct Params {
    /// The penalty of a repeat as long as `dry_allowed_length`; 0: off.
    #[schemars(range(min = 0, max = 100))]
    dry_multiplier: f64,
    /// What each further token of the repeat multiplies the penalty by.
    #[schemars(range(min = 1, max = 10))]
    dry_base: f64,
    /// The shortest repeat that is penalised, in tokens.
    #[schemars(range(min = 1, max = 1000))]
    dry_allowed_length: usize,
    /// Only the last so many tokens of prompt and generated text count; 0: all.
    dry_range: usize,
    /// No repeat reaches across a token that contains one of these.
    #[schemars(inner(length(min = 1)))]
    dry_sequence_breakers: Vec<String>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_range: 0,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
        }
    }
}

/// Prompt and generated tokens, and what their repeats cost.
#[derive(Debug)]
struct Dry {
    strength: Strength,
    /// How many of the last tokens count; 0: all.
    range: usize,
    tokens: Vec<TokenId>,
    /// How many tokens there are since the last breaker.
    unbroken: usize,
    breakers: Breakers,
}

impl Dry {
    fn new(params: &Params) -> Self {
        Self {
            strength: Strength {
                multiplier: params.dry_multiplier,
                base: params.dry_base,
                allowed: params.dry_allowed_length,
            },
            range: params.dry_range,
            tokens: Vec::new(),
            unbroken: 0,
            breakers: Breakers::new(&params.dry_sequence_breakers),
        }
    }

    fn is_on(&self) -> bool {
        self.strength.multiplier > 0.0
    }

    fn accept(&mut self, accepted: &[TokenId], bytes: impl Fn(TokenId) -> Vec<u8>) {
        for &id in accepted {
            self.tokens.push(id);
            self.unbroken = if self.breakers.has(id, &bytes) {
                0
            } else {
                self.unbroken + 1
            };
        }
    }

    /// What to take from which logit.
    fn penalties(&self) -> (Vec<TokenId>, Vec<f32>) {
        let first = match self.range {
            0 => 0,
            range => self.tokens.len().saturating_sub(range),
        };
        let tokens = &self.tokens[first..];
        let longest = repeats::longest(tokens, self.unbroken, self.strength.allowed);
        let costly = longest
            .into_iter()
            .filter(|(id, _)| !self.breakers.is_known(*id));
        costly
            .map(|(id, length)| (id, self.strength.penalty(length)))
            .unzip()
    }
}

impl Plugin for Dry {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Penalises what would lengthen a repeat of the text's end.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let mut dry = Self::new(&params);
        if dry.is_on() {
            dry.accept(&sequence.prompt, vocabulary::token_bytes);
        }
        Ok(dry)
    }
}

impl TokenProcessor for Dry {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        if !self.is_on() {
            return Ok(());
        }
        self.accept(accepted, vocabulary::token_bytes);
        let (ids, penalties) = self.penalties();
        if !ids.is_empty() {
            let values: Vec<_> = penalties.into_iter().map(|penalty| -penalty).collect();
            edits::add(&ids, &values);
        }
        Ok(())
    }
}

export!(TokenProcessor for Dry);

#[cfg(test)]
mod tests;
