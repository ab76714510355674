//! Pushes the end as the text grows: with n tokens generated the logit of each
//! id that ends the sequence gets `per_token · (n − from)`, once n is above
//! `from`. Unlike a limit it lets the model find the place to stop.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Tokens that come without a push.
    #[schemars(range(max = 1_000_000))]
    from: usize,
    /// What each further token adds to the logits of the end ids; below 0 it
    /// makes the text longer.
    #[schemars(range(min = -100, max = 100))]
    per_token: f32,
}

struct LengthControl {
    params: Params,
    end_ids: Vec<TokenId>,
    n_generated: usize,
}

impl Params {
    /// What the end ids get after so many tokens; 0: nothing.
    fn push(&self, n_generated: usize) -> f32 {
        self.per_token * n_generated.saturating_sub(self.from) as f32
    }
}

impl Plugin for LengthControl {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Pushes the end as the text grows.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            params,
            end_ids: sequence.end_ids,
            n_generated: 0,
        })
    }
}

impl TokenProcessor for LengthControl {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.n_generated += accepted.len();
        let push = self.params.push(self.n_generated);
        if push != 0.0 {
            edits::add(&self.end_ids, &vec![push; self.end_ids.len()]);
        }
        Ok(())
    }
}

export!(TokenProcessor for LengthControl);

#[cfg(test)]
mod tests {
    #![allow(clippy::float_cmp, reason = "worked values are exact")]
    use super::Params;

    #[test]
    fn the_push_grows_from_the_given_length() {
        let params = Params {
            from: 10,
            per_token: 0.25,
        };
        let pushes = [0, 10, 11, 14].map(|n| params.push(n));
        assert_eq!(pushes, [0.0, 0.0, 0.25, 1.0]);
    }
}
