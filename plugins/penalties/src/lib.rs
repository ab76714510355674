//! `penalties`: repetition first, then frequency and presence. They do not
//! commute.

#![cfg_attr(test, allow(clippy::float_cmp, reason = "worked values are exact"))]

mod frequency;
mod presence;
mod repetition;

use serde::{Deserialize, Serialize};
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    schemars::{self, JsonSchema},
};

use crate::{frequency::Frequency, presence::Presence, repetition::Repetition};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Each distinct token of the prompt and the generated text once: a logit
    /// above zero is divided by this, any other multiplied. 1 is neutral. Keskar
    /// et al. 2019, arXiv 1909.05858.
    #[schemars(with = "f32", extend("exclusiveMinimum" = 0, "default" = 1), range(max = 100))]
    repetition_penalty: Option<f32>,
    /// Only the last so many tokens of prompt and generated text count for
    /// `repetition_penalty`; 0: all.
    repetition_context_size: u32,
    /// Taken from the logit of each token that occurs in the history.
    presence_penalty: f32,
    /// Only the last so many tokens of the history count for
    /// `presence_penalty`; 0: all.
    presence_context_size: u32,
    /// Taken from the logit of each token of the history, once for each time it
    /// occurs.
    frequency_penalty: f32,
    /// Only the last so many tokens of the history count for
    /// `frequency_penalty`; 0: all.
    frequency_context_size: u32,
    /// What `presence_penalty` and `frequency_penalty` count: generated tokens,
    /// as OpenAI defines them, or all, the prompt too.
    history: History,
}

/// What presence and frequency count. Repetition counts all.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum History {
    #[default]
    Generated,
    All,
}

/// The penalties that are on; a neutral one costs nothing.
#[derive(Debug)]
struct Penalties {
    repetition: Option<Repetition>,
    frequency: Option<Frequency>,
    presence: Option<Presence>,
}

impl Penalties {
    #[allow(clippy::float_cmp, reason = "1 is neutral, nothing near it")]
    fn new(params: &Params, prompt: &[TokenId]) -> Self {
        let mut penalties = Self {
            repetition: params
                .repetition_penalty
                .filter(|&divisor| divisor != 1.0)
                .map(|divisor| Repetition::new(divisor, params.repetition_context_size, prompt)),
            frequency: Some(params.frequency_penalty)
                .filter(|&penalty| penalty != 0.0)
                .map(|penalty| Frequency::new(penalty, params.frequency_context_size)),
            presence: Some(params.presence_penalty)
                .filter(|&penalty| penalty != 0.0)
                .map(|penalty| Presence::new(penalty, params.presence_context_size)),
        };
        if params.history == History::All {
            for &id in prompt {
                penalties.count(id);
            }
        }
        penalties
    }

    /// Adds a token to the history of presence and frequency.
    fn count(&mut self, id: TokenId) {
        if let Some(frequency) = &mut self.frequency {
            frequency.accept(id);
        }
        if let Some(presence) = &mut self.presence {
            presence.accept(id);
        }
    }

    fn accept(&mut self, accepted: &[TokenId]) {
        for &id in accepted {
            if let Some(repetition) = &mut self.repetition {
                repetition.accept(id);
            }
            self.count(id);
        }
    }
}

impl Plugin for Penalties {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Repetition, frequency and presence penalties.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        if params
            .repetition_penalty
            .is_some_and(|divisor| divisor < f32::MIN_POSITIVE)
        {
            let message = "repetition_penalty is too close to 0 to divide by";
            return Err(OpenError::InvalidParams(message.into()));
        }
        Ok(Self::new(&params, &sequence.prompt))
    }
}

impl TokenProcessor for Penalties {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.accept(accepted);
        if let Some(repetition) = &self.repetition {
            edits::scale(repetition.ids(), repetition.divisor());
        }
        if let Some(frequency) = &self.frequency {
            let (ids, values) = frequency.additions();
            edits::add(ids, &values);
        }
        if let Some(presence) = &self.presence {
            let (ids, values) = presence.additions();
            edits::add(ids, &values);
        }
        Ok(())
    }
}

export!(TokenProcessor for Penalties);

#[cfg(test)]
mod tests;
