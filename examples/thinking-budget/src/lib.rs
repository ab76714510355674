//! Ends the thinking after so many tokens: if the model has not written the end
//! of its thinking by then, it is forced. For models that think first.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, export,
    schemars::{self, JsonSchema},
    vocabulary,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// The most tokens before the end of thinking.
    #[schemars(range(max = 10_000_000))]
    tokens: usize,
    /// What ends thinking: a special token, or text.
    #[schemars(length(min = 1, max = 1000))]
    #[serde(default = "default_end")]
    end: String,
}

fn default_end() -> String {
    "</think>".into()
}

struct ThinkingBudget {
    tokens: usize,
    end: Vec<TokenId>,
    /// What was generated while thinking.
    thoughts: Vec<TokenId>,
    has_ended: bool,
}

impl ThinkingBudget {
    fn new(tokens: usize, end: Vec<TokenId>) -> Self {
        Self {
            tokens,
            end,
            thoughts: Vec::new(),
            has_ended: false,
        }
    }

    fn push(&mut self, id: TokenId) {
        if !self.has_ended {
            self.thoughts.push(id);
            self.has_ended = self.thoughts.ends_with(&self.end);
        }
    }

    fn is_used_up(&self) -> bool {
        !self.has_ended && self.thoughts.len() >= self.tokens
    }
}

impl Plugin for ThinkingBudget {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Ends the thinking after so many tokens.",
        }
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        // `encode` reads no special tokens, so they are looked for first.
        let special = vocabulary::special_tokens()
            .into_iter()
            .find(|(_, text)| *text == params.end);
        let end = match special {
            Some((id, _)) => vec![id],
            None => vocabulary::encode(&params.end),
        };
        Ok(Self::new(params.tokens, end))
    }
}

impl TokenProcessor for ThinkingBudget {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        for &id in accepted {
            self.push(id);
        }
        if self.is_used_up() {
            control::force(&self.end);
        }
        Ok(())
    }
}

export!(TokenProcessor for ThinkingBudget);

#[cfg(test)]
mod tests {
    use super::ThinkingBudget;

    /// Whether a budget of three tokens is used up, where 8 9 ends thinking.
    fn is_used_up(generated: &[u32]) -> bool {
        let mut budget = ThinkingBudget::new(3, vec![8, 9]);
        for &id in generated {
            budget.push(id);
        }
        budget.is_used_up()
    }

    #[test]
    fn thinking_ends_with_its_budget() {
        assert!(!is_used_up(&[1, 2]));
        assert!(is_used_up(&[1, 2, 3]));
        assert!(is_used_up(&[1, 2, 8]));
    }

    #[test]
    fn an_end_of_its_own_or_a_forced_one_is_the_last() {
        assert!(!is_used_up(&[1, 8, 9, 4, 5]));
        assert!(!is_used_up(&[1, 2, 3, 8, 9]));
        assert!(!is_used_up(&[1, 2, 3, 8, 9, 4, 5, 6]));
    }
}
