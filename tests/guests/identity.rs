//! A logits processor that changes nothing; with `row`, it reads the whole row
//! and returns it as a new one.

use serde::Deserialize;
use sluice_plugin::{
    Description, LogitsProcessor, OpenError, Plugin, SequenceInfo, TokenId, export, logits,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
struct Params {
    row: bool,
}

struct Identity {
    row: bool,
}

impl Plugin for Identity {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("identity")
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self { row: params.row })
    }
}

impl LogitsProcessor for Identity {
    fn process(&mut self, _accepted: &[TokenId]) -> Result<Option<Vec<f32>>, String> {
        Ok(self.row.then(logits::row))
    }
}

export!(LogitsProcessor for Identity);
