//! A token processor that hands the host lists of four million ids, or edits
//! without end.

use std::hint::black_box;

use serde::Deserialize;
use sluice_plugin::schemars::{self, JsonSchema};
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, edits, export,
};

const LENGTH: usize = 4 << 20;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    what: What,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum What {
    Edit,
    Force,
    /// Small lists, as many as there is time for.
    Many,
}

struct HugeList(What);

impl Plugin for HugeList {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("huge-list")
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self(params.what))
    }
}

impl TokenProcessor for HugeList {
    fn plan(&mut self, _accepted: &[TokenId]) -> Result<(), String> {
        match self.0 {
            What::Edit => edits::deny(&vec![1; LENGTH]),
            What::Force => control::force(&vec![1; LENGTH]),
            What::Many => {
                while black_box(true) {
                    edits::deny(&[1]);
                }
            }
        }
        Ok(())
    }
}

export!(TokenProcessor for HugeList);
