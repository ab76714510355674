//! A sampler that remembers what it drew: the luck of one position decides the
//! next.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, Sampler, SequenceInfo, TokenId, export, logits, random,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {}

struct Luck {
    drawn: usize,
}

impl Plugin for Luck {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("luck")
    }

    fn open(_: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self { drawn: 0 })
    }
}

impl Sampler for Luck {
    fn sample(&mut self, _accepted: &[TokenId]) -> Result<TokenId, String> {
        let best = logits::top(16).ids;
        let token = best[self.drawn % best.len()];
        self.drawn = (random::bits(0) % 16) as usize;
        Ok(token)
    }
}

export!(Sampler for Luck);
