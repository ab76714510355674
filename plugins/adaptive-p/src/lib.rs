//! `adaptive-p`: the stages of [`sluice_plugin::sampling`], then a draw that
//! prefers tokens near a probability, so that the average of those drawn comes
//! to lie there. llama.cpp, pull request 17927.

#![cfg_attr(test, allow(clippy::float_cmp, reason = "worked values are exact"))]

mod aim;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, Sampler, SequenceInfo, TokenId, export, random,
    ranking::{HostRow, Row},
    sampling::{self, Pipeline},
    schemars::{self, JsonSchema},
    vocabulary,
};

use crate::aim::Aim;

// Only the schema refuses unknown members: serde cannot beside `flatten`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("additionalProperties" = false))]
struct Params {
    #[serde(flatten)]
    sampling: sampling::Params,
    /// The probability that drawn tokens should have on average; below 0: off,
    /// an ordinary draw. llama.cpp, pull request 17927.
    #[schemars(range(max = 1))]
    adaptive_target: f64,
    /// How slowly the past is forgotten: each draw's share of the average
    /// shrinks by this at the next.
    #[schemars(range(min = 0, max = 0.99))]
    adaptive_decay: f64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            sampling: sampling::Params::default(),
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
        }
    }
}

#[derive(Debug)]
struct AdaptiveP {
    truncation: Pipeline,
    /// Absent with a target below 0: an ordinary draw.
    aim: Option<Aim>,
}

impl AdaptiveP {
    fn new(params: Params, end_ids: &[TokenId], vocabulary_size: usize) -> Result<Self, String> {
        let aims = params.adaptive_target >= 0.0;
        Ok(Self {
            truncation: Pipeline::new(params.sampling, end_ids, vocabulary_size)?,
            aim: aims.then(|| Aim::new(params.adaptive_target, params.adaptive_decay)),
        })
    }

    /// Draws by `uniform(0)`. None if every token is banned.
    fn choose(&mut self, row: impl Row, uniform: &impl Fn(u32) -> f64) -> Option<TokenId> {
        let Some(aim) = &mut self.aim else {
            return self.truncation.choose(row, uniform);
        };
        let mut kept = self.truncation.kept(row, uniform)?;
        let total = kept.total();
        let mut probabilities = Vec::new();
        while kept.has(probabilities.len()) {
            probabilities.push(kept.ratio(probabilities.len()) / total);
        }
        let rank = aim.draw(&probabilities, uniform(0))?;
        kept.id(rank)
    }
}

impl Plugin for AdaptiveP {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Draws tokens whose probability is near a target on average.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let vocabulary_size = vocabulary::model().vocabulary_size as usize;
        Self::new(params, &sequence.end_ids, vocabulary_size).map_err(OpenError::InvalidParams)
    }
}

impl Sampler for AdaptiveP {
    fn sample(&mut self, _accepted: &[TokenId]) -> Result<TokenId, String> {
        self.choose(HostRow, &random::uniform)
            .ok_or_else(|| "every token is banned".to_owned())
    }
}

export!(Sampler for AdaptiveP);

#[cfg(test)]
mod tests;
