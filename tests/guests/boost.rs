//! A logits processor that adds to one logit.

use serde::Deserialize;
use sluice_plugin::{
    Description, LogitsProcessor, OpenError, Plugin, SequenceInfo, TokenId, edits, export,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    id: TokenId,
    value: f32,
}

struct Boost(Params);

impl Plugin for Boost {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("boost")
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self(params))
    }
}

impl LogitsProcessor for Boost {
    fn process(&mut self, _accepted: &[TokenId]) -> Result<Option<Vec<f32>>, String> {
        edits::add(&[self.0.id], &[self.0.value]);
        Ok(None)
    }
}

export!(LogitsProcessor for Boost);
