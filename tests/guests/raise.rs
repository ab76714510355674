//! A logits processor that raises banned tokens: by an edit, or by the row that
//! it returns.

use serde::Deserialize;
use sluice_plugin::schemars::{self, JsonSchema};
use sluice_plugin::{
    Description, LogitsProcessor, OpenError, Plugin, SequenceInfo, TokenId, edits, export, logits,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    by: By,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum By {
    /// Adds to what is banned.
    Edit,
    /// Puts a number in the place of each negative infinity.
    Row,
    /// Adds to some tokens, banned or not: it is no fault that this is in vain
    /// for the banned ones.
    Bias,
}

struct Raise(By);

impl Plugin for Raise {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("raise")
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self(params.by))
    }
}

impl LogitsProcessor for Raise {
    fn process(&mut self, _accepted: &[TokenId]) -> Result<Option<Vec<f32>>, String> {
        let row = logits::row();
        let is_banned = |logit: &f32| *logit == f32::NEG_INFINITY;
        match self.0 {
            By::Edit => {
                let banned: Vec<TokenId> = (0..)
                    .zip(&row)
                    .filter(|(_, logit)| is_banned(logit))
                    .map(|(id, _)| id)
                    .collect();
                edits::add(&banned, &vec![100.0; banned.len()]);
                Ok(None)
            }
            By::Row => {
                let finite = |logit: f32| if is_banned(&logit) { -50.0 } else { logit };
                Ok(Some(row.into_iter().map(finite).collect()))
            }
            By::Bias => {
                edits::add(&[1, 2, 3, 4], &[2.0; 4]);
                Ok(None)
            }
        }
    }
}

export!(LogitsProcessor for Raise);
