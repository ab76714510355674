//! A phrase that always follows another: as soon as the generated text has
//! `after`, `phrase` is forced. Text is compared by bytes, however tokenised.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, export,
    schemars::{self, JsonSchema},
    vocabulary,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// The text that triggers.
    #[schemars(length(min = 1, max = 1000))]
    after: String,
    /// What follows the token in which that text ends.
    #[schemars(length(min = 1, max = 10_000))]
    phrase: String,
}

/// Looks for a text as tokens come.
struct Trigger {
    text: Vec<u8>,
    /// The end of what came, one byte too short to hold the text.
    tail: Vec<u8>,
}

impl Trigger {
    fn new(text: &str) -> Self {
        Self {
            text: text.into(),
            tail: Vec::new(),
        }
    }

    /// Whether the text ends in this token.
    fn push(&mut self, token: &[u8]) -> bool {
        self.tail.extend_from_slice(token);
        let found = self
            .tail
            .windows(self.text.len())
            .any(|part| part == self.text);
        let keep = self.text.len() - 1;
        self.tail.drain(..self.tail.len().saturating_sub(keep));
        found
    }
}

struct TriggerPhrase {
    trigger: Trigger,
    phrase: Vec<TokenId>,
}

/// Whether the phrase, once forced, would trigger itself for ever.
fn repeats<'a>(after: &str, phrase: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let mut trigger = Trigger::new(after);
    trigger.push(after.as_bytes());
    phrase
        .into_iter()
        .fold(false, |_, token| trigger.push(token))
}

impl Plugin for TriggerPhrase {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "A phrase that always follows another.",
        }
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        let phrase = vocabulary::encode(&params.phrase);
        let tokens: Vec<_> = phrase
            .iter()
            .map(|&id| vocabulary::token_bytes(id))
            .collect();
        if repeats(&params.after, tokens.iter().map(Vec::as_slice)) {
            let message = "`phrase` ends with `after`, so it would follow itself for ever";
            return Err(OpenError::InvalidParams(message.into()));
        }
        Ok(Self {
            trigger: Trigger::new(&params.after),
            phrase,
        })
    }
}

impl TokenProcessor for TriggerPhrase {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        // The newest token alone decides, so that all at once do the same.
        let mut found = false;
        for &id in accepted {
            found = self.trigger.push(&vocabulary::token_bytes(id));
        }
        if found {
            control::force(&self.phrase);
        }
        Ok(())
    }
}

export!(TokenProcessor for TriggerPhrase);

#[cfg(test)]
mod tests {
    use super::{Trigger, repeats};

    #[test]
    fn the_token_in_which_the_text_ends_triggers() {
        let mut trigger = Trigger::new("the end");
        let tokens = ["In th", "e en", "d.", " Then", " the ends", " d"];
        let found = tokens.map(|token| trigger.push(token.as_bytes()));
        assert_eq!(found, [false, false, true, false, true, false]);
    }

    #[test]
    fn a_phrase_that_triggers_itself_is_known() {
        assert!(repeats("aa", [&b"a"[..]]));
        assert!(repeats("b", [&b"a"[..], b"b"]));
        assert!(!repeats("b", [&b"b"[..], b"a"]));
        assert!(!repeats("x", [&b"a"[..]]));
    }
}
