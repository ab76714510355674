//! A logits processor that throws a die of `sides` at each position and allows
//! only the tokens whose digit at `place`, in that base, is what it shows.

use serde::Deserialize;
use sluice_plugin::{
    Description, LogitsProcessor, OpenError, Plugin, SequenceInfo, TokenId, edits, export, random,
    schemars::{self, JsonSchema},
    vocabulary,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Params {
    #[schemars(range(min = 1, max = 100))]
    sides: u32,
    #[schemars(range(max = 3))]
    place: u32,
}

pub(crate) struct Dice {
    params: Params,
    vocabulary_size: u32,
}

impl Plugin for Dice {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("dice")
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            params,
            vocabulary_size: vocabulary::model().vocabulary_size,
        })
    }
}

impl LogitsProcessor for Dice {
    fn process(&mut self, _accepted: &[TokenId]) -> Result<Option<Vec<f32>>, String> {
        let Params { sides, place } = self.params;
        let shown = (random::uniform(0) * f64::from(sides)) as u32;
        let digit = |id: &TokenId| id / sides.pow(place) % sides;
        let allowed: Vec<TokenId> = (0..self.vocabulary_size)
            .filter(|id| digit(id) == shown)
            .collect();
        edits::allow(&allowed);
        Ok(None)
    }
}

export!(LogitsProcessor for Dice);
