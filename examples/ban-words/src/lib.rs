//! Keeps words out of the generated text, however they are tokenised: it looks
//! at bytes, not at ids. A word that the prompt began is not one: only its end
//! would be generated.

mod word;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    schemars::{self, JsonSchema},
    vocabulary,
};

use crate::word::Word;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// What the generated text must not contain.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    words: Vec<String>,
    /// Whether upper and lower case ASCII letters are alike.
    #[serde(default)]
    ignore_case: bool,
}

struct BanWords {
    words: Vec<Word>,
    ignore_case: bool,
    /// The end of the generated text, as much as a word can reach back into.
    tail: Vec<u8>,
}

impl Plugin for BanWords {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Keeps words out of the generated text, however they are tokenised.",
        }
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        let Params { words, ignore_case } = params;
        let (offsets, mut bytes) = vocabulary::all_token_bytes();
        fold(&mut bytes, ignore_case);
        let words = words.into_iter().map(|word| {
            let mut word = word.into_bytes();
            fold(&mut word, ignore_case);
            Word::new(word, &offsets, &bytes)
        });
        Ok(Self {
            words: words.collect(),
            ignore_case,
            tail: Vec::new(),
        })
    }
}

impl TokenProcessor for BanWords {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        for &id in accepted {
            let mut bytes = vocabulary::token_bytes(id);
            fold(&mut bytes, self.ignore_case);
            self.tail.append(&mut bytes);
        }
        let reach = self.words.iter().map(Word::reach).max().unwrap_or(0);
        self.tail.drain(..self.tail.len().saturating_sub(reach));
        for word in &self.words {
            word.completed_by(&self.tail).for_each(edits::deny);
        }
        Ok(())
    }
}

fn fold(bytes: &mut [u8], ignore_case: bool) {
    if ignore_case {
        bytes.make_ascii_lowercase();
    }
}

export!(TokenProcessor for BanWords);
