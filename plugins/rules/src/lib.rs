//! `rules`: bans and biases that a request states outright.

#![cfg_attr(test, allow(clippy::float_cmp, reason = "worked values are exact"))]

mod bad_words;
mod end;
mod ids;
mod logit_bias;
mod ngrams;

use std::collections::BTreeMap;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    schemars::{self, JsonSchema},
    vocabulary,
};

use crate::bad_words::BadWords;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Every other token is banned.
    #[schemars(with = "Vec<TokenId>", length(min = 1))]
    allowed_token_ids: Option<Vec<TokenId>>,
    /// What to add to a token's logit, by decimal id. -100 does not ban.
    #[schemars(schema_with = "logit_bias::schema")]
    logit_bias: BTreeMap<String, f32>,
    /// Words or lists of token ids that are not generated. A word is tokenised
    /// with and without a leading space; another tokenisation of the same text
    /// is not caught.
    bad_words: Vec<BadWord>,
    /// Nothing ends the sequence before so many tokens. At most `max_tokens`.
    min_tokens: u32,
    /// Bans the ids by which the model ends a sequence. Stop ids of the request
    /// still end it.
    ignore_eos: bool,
    /// No so many tokens in a row occur twice in prompt and generated text; 0:
    /// off.
    no_repeat_ngram_size: usize,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum BadWord {
    Text(#[schemars(length(min = 1))] String),
    Ids(#[schemars(length(min = 1))] Vec<TokenId>),
}

/// What the rules hold for one sequence.
#[derive(Debug)]
struct Rules {
    allowed: Option<Vec<TokenId>>,
    biased: Vec<TokenId>,
    biases: Vec<f32>,
    bad_words: BadWords,
    /// Banned while fewer than `min_tokens` are generated.
    end_ids: Vec<TokenId>,
    min_tokens: u32,
    /// Banned throughout.
    ignored: Vec<TokenId>,
    /// 0: off.
    no_repeat_ngram_size: usize,
    /// Prompt and generated tokens; kept for that size alone.
    tokens: Vec<TokenId>,
    generated: u32,
}

impl Plugin for Rules {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Allowed tokens, biases, bad words, minimum length, no repeated n-grams.",
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let model = vocabulary::model();
        let parsed = parse(&params, model.vocabulary_size, sequence.max_tokens);
        let (biased, biases) = parsed.map_err(OpenError::InvalidParams)?;
        let words = bad_words::spellings(params.bad_words, vocabulary::encode)
            .map_err(OpenError::InvalidParams)?;
        Ok(Self {
            allowed: params.allowed_token_ids,
            biased,
            biases,
            bad_words: BadWords::new(words),
            end_ids: sequence.end_ids,
            min_tokens: params.min_tokens,
            ignored: if params.ignore_eos {
                model.end_of_sequence
            } else {
                Vec::new()
            },
            no_repeat_ngram_size: params.no_repeat_ngram_size,
            tokens: sequence.prompt,
            generated: 0,
        })
    }
}

/// Checks what the schema cannot, and gives the biases by id.
fn parse(
    params: &Params,
    vocabulary_size: u32,
    max_tokens: u32,
) -> Result<(Vec<TokenId>, Vec<f32>), String> {
    if let Some(allowed) = &params.allowed_token_ids {
        ids::within("allowed_token_ids", allowed, vocabulary_size)?;
    }
    for word in &params.bad_words {
        if let BadWord::Ids(listed) = word {
            ids::within("bad_words", listed, vocabulary_size)?;
        }
    }
    end::at_most(params.min_tokens, max_tokens)?;
    logit_bias::parse(&params.logit_bias, vocabulary_size)
}

impl TokenProcessor for Rules {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.generated += accepted.len() as u32;
        self.bad_words.push(accepted);
        if self.no_repeat_ngram_size > 0 {
            self.tokens.extend_from_slice(accepted);
            edits::deny(&ngrams::banned(&self.tokens, self.no_repeat_ngram_size));
        }
        if let Some(allowed) = &self.allowed {
            edits::allow(allowed);
        }
        if !self.biased.is_empty() {
            edits::add(&self.biased, &self.biases);
        }
        let bad = self.bad_words.banned();
        if !bad.is_empty() {
            edits::deny(&bad);
        }
        if self.generated < self.min_tokens {
            edits::deny(&self.end_ids);
        }
        if !self.ignored.is_empty() {
            edits::deny(&self.ignored);
        }
        Ok(())
    }
}

export!(TokenProcessor for Rules);

#[cfg(test)]
mod tests;
