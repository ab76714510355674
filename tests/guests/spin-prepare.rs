//! Never returns from `prepare`.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, export,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {}

struct Prepared;

impl Plugin for Prepared {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("spin-prepare")
    }

    fn prepare() {
        test_guests::spin();
    }

    fn open(_: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self)
    }
}

impl TokenProcessor for Prepared {
    fn plan(&mut self, _accepted: &[TokenId]) -> Result<(), String> {
        Ok(())
    }
}

export!(TokenProcessor for Prepared);
