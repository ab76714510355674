//! `penalties` with one formula changed, as several servers had it: presence
//! and frequency count the prompt too. It takes the next version of the name,
//! so it also stands for a formula that somebody changed and uploaded.

#[path = "../../plugins/penalties/src/frequency.rs"]
mod frequency;
#[path = "../../plugins/penalties/src/presence.rs"]
mod presence;
#[path = "../../plugins/penalties/src/repetition.rs"]
mod repetition;

use serde::{Deserialize, de::IgnoredAny};
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    schemars::{self, JsonSchema},
};

use crate::{frequency::Frequency, presence::Presence, repetition::Repetition};

#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
    repetition_penalty: f32,
    repetition_context_size: u32,
    presence_penalty: f32,
    presence_context_size: u32,
    frequency_penalty: f32,
    frequency_context_size: u32,
    /// The mutant counts the prompt in any case.
    #[serde(rename = "history")]
    #[schemars(with = "String", extend("enum" = ["generated", "all"], "default" = "generated"))]
    _history: IgnoredAny,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            repetition_penalty: 1.0,
            repetition_context_size: 0,
            presence_penalty: 0.0,
            presence_context_size: 0,
            frequency_penalty: 0.0,
            frequency_context_size: 0,
            _history: IgnoredAny,
        }
    }
}

struct Mutant {
    repetition: Repetition,
    frequency: Frequency,
    presence: Presence,
}

impl Plugin for Mutant {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: "penalties",
            version: "0.1.1",
            summary: "Repetition, frequency and presence penalties, all over prompt and text.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let prompt = &sequence.prompt;
        let mut mutant = Self {
            repetition: Repetition::new(
                params.repetition_penalty,
                params.repetition_context_size,
                prompt,
            ),
            frequency: Frequency::new(params.frequency_penalty, params.frequency_context_size),
            presence: Presence::new(params.presence_penalty, params.presence_context_size),
        };
        for &id in prompt {
            mutant.frequency.accept(id);
            mutant.presence.accept(id);
        }
        Ok(mutant)
    }
}

impl TokenProcessor for Mutant {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        for &id in accepted {
            self.repetition.accept(id);
            self.frequency.accept(id);
            self.presence.accept(id);
        }
        edits::scale(self.repetition.ids(), self.repetition.divisor());
        let (ids, values) = self.frequency.additions();
        edits::add(ids, &values);
        let (ids, values) = self.presence.additions();
        edits::add(ids, &values);
        Ok(())
    }
}

export!(TokenProcessor for Mutant);
