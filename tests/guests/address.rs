//! A sampler that takes an address for chance: where its allocator put the
//! sequence decides among the best tokens.

use serde::Deserialize;
use sluice_plugin::schemars::{self, JsonSchema};
use sluice_plugin::{
    Description, OpenError, Plugin, Sampler, SequenceInfo, TokenId, export, logits,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {}

struct Address {
    place: Box<u64>,
}

impl Plugin for Address {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("address")
    }

    fn open(_: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self { place: Box::new(0) })
    }
}

impl Sampler for Address {
    fn sample(&mut self, _accepted: &[TokenId]) -> Result<TokenId, String> {
        let best = logits::top(16).ids;
        let address = (&raw const *self.place).addr();
        Ok(best[address / 8 % best.len()])
    }
}

export!(Sampler for Address);
