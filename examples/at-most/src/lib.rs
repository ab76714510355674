//! Bans a token once it has been generated so many times: the smallest plugin
//! with parameters, state and an edit. The same in JavaScript and Python lies in
//! `examples/languages`.

use std::collections::HashMap;

use serde::Deserialize;
use sluice_plugin::schemars::{self, JsonSchema};
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// How often a token may be generated.
    #[schemars(range(min = 1, max = 1_000_000))]
    times: u32,
}

struct AtMost {
    times: u32,
    counts: HashMap<TokenId, u32>,
    used_up: Vec<TokenId>,
}

impl Plugin for AtMost {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Bans a token once it has been generated so many times.",
        }
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            times: params.times,
            counts: HashMap::new(),
            used_up: Vec::new(),
        })
    }
}

impl TokenProcessor for AtMost {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        for &id in accepted {
            let count = self.counts.entry(id).or_default();
            *count += 1;
            if *count == self.times {
                self.used_up.push(id);
            }
        }
        edits::deny(&self.used_up);
        Ok(())
    }
}

export!(TokenProcessor for AtMost);

#[test]
fn the_cases_hold() {
    sluice_plugin::testing::cases::<AtMost>(include_str!("../cases.json"));
}
