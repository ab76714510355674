//! Forces the given ids one at a time, then leaves the sequence alone.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, export,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    ids: Vec<TokenId>,
}

struct Force {
    ids: Vec<TokenId>,
    generated: usize,
}

impl Plugin for Force {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("force")
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            ids: params.ids,
            generated: 0,
        })
    }
}

impl TokenProcessor for Force {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.generated += accepted.len();
        if let Some(id) = self.ids.get(self.generated) {
            control::force(&[*id]);
        }
        Ok(())
    }
}

export!(TokenProcessor for Force);
