//! The answer is one of the given texts, each as the tokenizer splits it, and
//! ends there. (`grammar` with `choice` takes every way to split it.)

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, edits, export,
    schemars::{self, JsonSchema},
    vocabulary,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// The texts of which the answer is one.
    #[schemars(length(min = 1, max = 1000), inner(length(min = 1)))]
    choices: Vec<String>,
}

struct MultipleChoice {
    choices: Vec<Vec<TokenId>>,
    end_ids: Vec<TokenId>,
    generated: Vec<TokenId>,
}

impl Plugin for MultipleChoice {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "The answer is one of the given texts.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let encode = |text: &String| vocabulary::encode(text);
        Ok(Self {
            choices: params.choices.iter().map(encode).collect(),
            end_ids: sequence.end_ids,
            generated: Vec::new(),
        })
    }
}

impl TokenProcessor for MultipleChoice {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.generated.extend_from_slice(accepted);
        let choices = self.choices.iter();
        let rests = choices.filter_map(|choice| choice.strip_prefix(self.generated.as_slice()));
        let (complete, open): (Vec<_>, Vec<_>) = rests.partition(|rest| rest.is_empty());
        if open.is_empty() {
            control::stop();
            return Ok(());
        }
        let mut allowed: Vec<_> = open.iter().map(|rest| rest[0]).collect();
        if !complete.is_empty() {
            allowed.extend(&self.end_ids);
        }
        edits::allow(&allowed);
        Ok(())
    }
}

export!(TokenProcessor for MultipleChoice);

#[test]
fn the_cases_hold() {
    sluice_plugin::testing::cases::<MultipleChoice>(include_str!("../cases.json"));
}
