//! Samples the given ids in turn, then the sequence's first end id.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, Sampler, SequenceInfo, TokenId, export,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    ids: Vec<TokenId>,
}

struct ForceSampler {
    ids: Vec<TokenId>,
    end_ids: Vec<TokenId>,
    generated: usize,
}

impl Plugin for ForceSampler {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("force-sampler")
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            ids: params.ids,
            end_ids: sequence.end_ids,
            generated: 0,
        })
    }
}

impl Sampler for ForceSampler {
    fn sample(&mut self, accepted: &[TokenId]) -> Result<TokenId, String> {
        self.generated += accepted.len();
        let id = self.ids.get(self.generated).or(self.end_ids.first());
        id.copied()
            .ok_or_else(|| "no id left and no end id".to_owned())
    }
}

export!(Sampler for ForceSampler);
