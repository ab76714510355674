//! `mirostat`: a sampler that holds the average surprise of its tokens, by
//! moving the bound above which tokens are dropped.
//! Basu et al. 2020, <https://arxiv.org/abs/2007.14966>; its second version.

#![cfg_attr(test, allow(clippy::float_cmp, reason = "worked values are exact"))]

mod bound;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, Sampler, SequenceInfo, TokenId, export, random,
    ranking::{HostRow, Row},
    sampling::{self, Pipeline},
    schemars::{self, JsonSchema},
    vocabulary,
};

use crate::bound::Bound;

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Divides the logits. Below 0.00001 the best token is taken.
    #[schemars(range(min = 0, max = 100))]
    temperature: f32,
    /// The version: 2, or 0 for a draw from all tokens. There is no version 1.
    #[schemars(extend("enum" = [0, 2]))]
    mirostat: u32,
    /// The surprise in bits that drawn tokens should have on average.
    #[schemars(extend("exclusiveMinimum" = 0))]
    mirostat_tau: f64,
    /// How fast the bound on surprise follows.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1))]
    mirostat_eta: f64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            mirostat: 2,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
        }
    }
}

#[derive(Debug)]
struct Mirostat {
    /// Temperature, which comes first.
    tempering: Pipeline,
    /// Absent at temperature 0, where the best token is always taken.
    bound: Option<Bound>,
}

impl Mirostat {
    fn new(params: &Params, vocabulary_size: usize) -> Result<Self, String> {
        if !matches!(params.mirostat, 0 | 2) {
            return Err(format!("mirostat is {}; it may be 0 or 2", params.mirostat));
        }
        let tempering = sampling::Params {
            temperature: params.temperature,
            ..sampling::Params::default()
        };
        let is_on = params.mirostat == 2 && !tempering.is_greedy();
        Ok(Self {
            tempering: Pipeline::new(tempering, &[], vocabulary_size)?,
            bound: is_on.then(|| Bound::new(params.mirostat_tau, params.mirostat_eta)),
        })
    }

    /// The token at `u`, after which the bound has moved. None if every token
    /// is banned.
    fn choose(&mut self, row: impl Row, u: f64) -> Option<TokenId> {
        let mut ranking = self.tempering.kept(row, &|_| u)?;
        if let Some(bound) = &self.bound {
            let kept = bound.kept(&mut ranking);
            ranking.keep(kept);
        }
        let rank = ranking.draw(u)?;
        if let Some(bound) = &mut self.bound {
            bound.follow(ranking.ratio(rank) / ranking.total());
        }
        ranking.id(rank)
    }
}

impl Plugin for Mirostat {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Draws so that tokens surprise by a constant amount on average.",
        }
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Self::new(&params, vocabulary::model().vocabulary_size as usize)
            .map_err(OpenError::InvalidParams)
    }
}

impl Sampler for Mirostat {
    fn sample(&mut self, _accepted: &[TokenId]) -> Result<TokenId, String> {
        self.choose(HostRow, random::uniform(0))
            .ok_or_else(|| "every token is banned".to_owned())
    }
}

export!(Sampler for Mirostat);

#[cfg(test)]
mod tests;
