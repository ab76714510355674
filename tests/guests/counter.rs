//! Forces id 2, then 3, 4 and so on: two more than the tokens generated. State
//! shared between sequences, or lost in one, shows in the text.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, export,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {}

struct Counter {
    generated: u32,
}

impl Plugin for Counter {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("counter")
    }

    fn open(_: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self { generated: 0 })
    }
}

impl TokenProcessor for Counter {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.generated += accepted.len() as u32;
        control::force(&[self.generated + 2]);
        Ok(())
    }
}

export!(TokenProcessor for Counter);
