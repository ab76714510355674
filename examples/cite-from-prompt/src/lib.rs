//! Raises every token that the prompt has, so that the text keeps to its words.
//! Control tokens, such as those of a chat template, are left alone.

use std::collections::BTreeSet;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    schemars::{self, JsonSchema},
    vocabulary,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// Added to the logit of every token of the prompt; below 0 the text keeps away from it.
    #[schemars(range(min = -100, max = 100))]
    boost: f32,
}

struct CiteFromPrompt {
    ids: Vec<TokenId>,
    boosts: Vec<f32>,
}

/// The tokens of `prompt` that show text and are not special, each once.
fn words(prompt: &[TokenId], special: &[TokenId], shows: impl Fn(TokenId) -> bool) -> Vec<TokenId> {
    let distinct: BTreeSet<_> = prompt.iter().copied().collect();
    let wanted = |id: &TokenId| !special.contains(id) && shows(*id);
    distinct.into_iter().filter(wanted).collect()
}

impl Plugin for CiteFromPrompt {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Raises the tokens that the prompt has.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let special: Vec<_> = vocabulary::special_tokens()
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        let shows = |id| !vocabulary::token_bytes(id).is_empty();
        let ids = words(&sequence.prompt, &special, shows);
        Ok(Self {
            boosts: vec![params.boost; ids.len()],
            ids,
        })
    }
}

impl TokenProcessor for CiteFromPrompt {
    fn plan(&mut self, _accepted: &[TokenId]) -> Result<(), String> {
        edits::add(&self.ids, &self.boosts);
        Ok(())
    }
}

export!(TokenProcessor for CiteFromPrompt);

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn each_word_once_and_no_control_token() {
        assert_eq!(words(&[1, 9, 4, 9, 3, 1], &[1], |id| id != 3), [4, 9]);
        assert_eq!(words(&[], &[1], |_| true), [0; 0]);
    }
}
