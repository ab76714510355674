//! `sampler`: the stages of [`sluice_plugin::sampling`], then the draw.

use sluice_plugin::{
    Description, OpenError, Plugin, Sampler, SequenceInfo, TokenId, export, random,
    ranking::HostRow,
    sampling::{Params, Pipeline},
    vocabulary,
};

#[derive(Debug)]
struct Truncating(Pipeline);

impl Plugin for Truncating {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Temperature, every truncation, then the draw, in any order.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let vocabulary_size = vocabulary::model().vocabulary_size as usize;
        Pipeline::new(params, &sequence.end_ids, vocabulary_size)
            .map(Self)
            .map_err(OpenError::InvalidParams)
    }
}

impl Sampler for Truncating {
    fn sample(&mut self, _accepted: &[TokenId]) -> Result<TokenId, String> {
        self.0
            .choose(HostRow, &random::uniform)
            .ok_or_else(|| "every token is banned".to_owned())
    }
}

export!(Sampler for Truncating);

#[cfg(test)]
mod tests;
