//! Where the model is unsure, a phrase takes the place of what it would make
//! up, and the text ends. Unsure is a position whose best token is less probable
//! than `min_prob`.
//!
//! A logits processor cannot force, so the phrase is written token by token, by
//! allowing one at a time. Whether it is being written must follow from the
//! accepted tokens alone, and the model may begin with the same token by
//! itself. So the phrase's first token is kept for it: elsewhere it is banned.
//! Choose a phrase that begins as the text does not.

use serde::Deserialize;
use sluice_plugin::schemars::{self, JsonSchema};
use sluice_plugin::{
    Description, LogitsProcessor, OpenError, Plugin, SequenceInfo, TokenId, edits, export, logits,
    vocabulary,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// The model is unsure where its best token is less probable, at
    /// temperature 1.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    min_prob: f64,
    /// What is written there. While the model is sure it cannot use the
    /// phrase's first token.
    #[serde(default = "default_phrase")]
    #[schemars(length(min = 1, max = 1000))]
    phrase: String,
}

fn default_phrase() -> String {
    "[I don't know.]".into()
}

/// A phrase, and how much of it the text ends with.
struct Progress {
    phrase: Vec<TokenId>,
    /// The newest tokens, as many as the phrase has.
    tail: Vec<TokenId>,
}

impl Progress {
    fn new(phrase: Vec<TokenId>) -> Self {
        Self {
            phrase,
            tail: Vec::new(),
        }
    }

    fn accept(&mut self, tokens: &[TokenId]) {
        self.tail.extend(tokens);
        let excess = self.tail.len().saturating_sub(self.phrase.len());
        self.tail.drain(..excess);
    }

    /// Tokens of the phrase that the text ends with: the longest beginning of
    /// it, as it was begun by its first token.
    fn written(&self) -> usize {
        let longest = self.phrase.len();
        let is_end = |n: &usize| self.tail.ends_with(&self.phrase[..*n]);
        (0..=longest).rev().find(is_end).unwrap_or(0)
    }
}

struct PreventHallucination {
    min_prob: f64,
    progress: Progress,
    end_ids: Vec<TokenId>,
}

impl Plugin for PreventHallucination {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Writes a phrase and ends where the model is unsure.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let phrase = vocabulary::encode(&params.phrase);
        if phrase.is_empty() {
            let message = "this model's vocabulary has no tokens for `phrase`";
            return Err(OpenError::InvalidParams(message.into()));
        }
        if sequence.end_ids.is_empty() {
            let message = "nothing ends this sequence, so it cannot end after `phrase`";
            return Err(OpenError::InvalidParams(message.into()));
        }
        Ok(Self {
            min_prob: params.min_prob,
            progress: Progress::new(phrase),
            end_ids: sequence.end_ids,
        })
    }
}

/// Whether the best token's probability is below `min_prob`.
fn is_unsure(best_logit: f32, log_sum_exp: f64, min_prob: f64) -> bool {
    (f64::from(best_logit) - log_sum_exp).exp() < min_prob
}

impl LogitsProcessor for PreventHallucination {
    fn process(&mut self, accepted: &[TokenId]) -> Result<Option<Vec<f32>>, String> {
        self.progress.accept(accepted);
        let phrase = &self.progress.phrase;
        match self.progress.written() {
            0 => {
                let best = logits::top(1);
                let best = best.logits.first().ok_or("every token is banned")?;
                if is_unsure(*best, logits::log_sum_exp(1.0), self.min_prob) {
                    edits::allow(&phrase[..1]);
                } else {
                    edits::deny(&phrase[..1]);
                }
            }
            n if n < phrase.len() => edits::allow(&phrase[n..=n]),
            _ => edits::allow(&self.end_ids),
        }
        Ok(None)
    }
}

export!(LogitsProcessor for PreventHallucination);

#[cfg(test)]
mod tests {
    use super::{Progress, is_unsure};

    #[test]
    fn the_longest_beginning_at_the_end_of_the_text_counts() {
        let mut progress = Progress::new(vec![5, 6, 5, 7]);
        let written = [1, 5, 6, 5, 7].map(|token| {
            progress.accept(&[token]);
            progress.written()
        });
        assert_eq!(written, [0, 1, 2, 3, 4]);
        progress.accept(&[6, 5]);
        assert_eq!(progress.written(), 1);
    }

    #[test]
    fn all_tokens_at_once_are_the_same_as_one_by_one() {
        let mut progress = Progress::new(vec![5, 6]);
        progress.accept(&[1, 2, 3, 5]);
        assert_eq!(progress.written(), 1);
    }

    #[test]
    fn a_probability_is_compared() {
        // Two equal logits have a half each: ln 2 is their sum's logarithm.
        let sum = std::f64::consts::LN_2;
        assert!(is_unsure(0.0, sum, 0.51));
        assert!(!is_unsure(0.0, sum, 0.49));
    }
}
