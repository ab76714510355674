//! `sampler`: temperature → top_k → top_p → min_p → xtc → draw.
//!
//! Every stage but xtc keeps the head of the tokens in order, and xtc drops the
//! head of what is left, so what is kept is always one range of ranks. Tokens
//! are read from the best down, as far as the question needs.

mod draw;
mod min_p;
mod ranking;
mod temperature;
mod top_k;
mod top_p;
mod xtc;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, Sampler, SequenceInfo, TokenId, export, logits, random,
    vocabulary,
};

use crate::ranking::{Ranking, Row};

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Params {
    temperature: f32,
    top_k: i64,
    top_p: f64,
    min_p: f64,
    xtc_probability: f64,
    xtc_threshold: f64,
    min_keep: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 1,
        }
    }
}

/// The stages in order, on any row and any source of chance.
struct Pipeline {
    params: Params,
    end_ids: Vec<TokenId>,
    vocabulary_size: usize,
}

impl Pipeline {
    fn choose(&self, row: impl Row, uniform: impl Fn(u32) -> f64) -> Option<TokenId> {
        let Params {
            top_p,
            min_p,
            xtc_probability,
            xtc_threshold,
            min_keep,
            ..
        } = self.params;
        if temperature::is_greedy(self.params.temperature) {
            return row.top(1).ids.first().copied();
        }
        let limit = top_k::limit(self.params.top_k, min_keep, self.vocabulary_size);
        let mut ranking = Ranking::new(row, self.params.temperature, limit);
        if !ranking.has(0) {
            return None;
        }
        if top_p < 1.0 {
            let kept = top_p::kept(&mut ranking, top_p, min_keep);
            ranking.keep(kept);
        }
        if min_p > 0.0 {
            let kept = min_p::kept(&mut ranking, min_p, min_keep);
            ranking.keep(kept);
        }
        let first = if xtc_probability > 0.0 && uniform(1) < xtc_probability {
            xtc::dropped(&mut ranking, xtc_threshold, min_keep, &self.end_ids)
        } else {
            0
        };
        draw::draw(&mut ranking, first, uniform(0))
    }
}

/// The row that the host offers at this position.
struct HostRow;

impl Row for HostRow {
    fn top(&self, k: u32) -> logits::Candidates {
        logits::top(k)
    }

    fn log_sum_exp(&self, temperature: f32) -> f64 {
        logits::log_sum_exp(temperature)
    }
}

impl Plugin for Pipeline {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Temperature, top_k, top_p, min_p and xtc, then the draw.",
            params_schema: include_str!("../schema.json"),
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let vocabulary_size = vocabulary::model().vocabulary_size as usize;
        if params.min_keep > vocabulary_size {
            return Err(OpenError::InvalidParams(format!(
                "min_keep is {}; the vocabulary has {vocabulary_size} tokens",
                params.min_keep
            )));
        }
        Ok(Self {
            params,
            end_ids: sequence.end_ids,
            vocabulary_size,
        })
    }
}

impl Sampler for Pipeline {
    fn sample(&mut self, _accepted: &[TokenId]) -> Result<TokenId, String> {
        self.choose(HostRow, random::uniform)
            .ok_or_else(|| "every token is banned".to_owned())
    }
}

export!(Sampler for Pipeline);

#[cfg(test)]
mod tests;
