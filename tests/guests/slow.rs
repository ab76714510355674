//! Works for so many rounds at each position, and changes nothing.

use std::hint::black_box;

use serde::Deserialize;
use sluice_plugin::schemars::{self, JsonSchema};
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, export,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Thousands of millions take a second.
    rounds: u64,
}

struct Slow {
    rounds: u64,
}

impl Plugin for Slow {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("slow")
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            rounds: params.rounds,
        })
    }
}

impl TokenProcessor for Slow {
    fn plan(&mut self, _: &[TokenId]) -> Result<(), String> {
        for round in 0..self.rounds {
            black_box(round);
        }
        Ok(())
    }
}

export!(TokenProcessor for Slow);
