//! Stops the sequence once so many tokens are generated.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, export,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    tokens: usize,
}

struct StopAt {
    tokens: usize,
    generated: usize,
}

impl Plugin for StopAt {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("stop-at")
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            tokens: params.tokens,
            generated: 0,
        })
    }
}

impl TokenProcessor for StopAt {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.generated += accepted.len();
        if self.generated >= self.tokens {
            control::stop();
        }
        Ok(())
    }
}

export!(TokenProcessor for StopAt);
