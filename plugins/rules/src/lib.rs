//! `rules`: bans and biases that a request states outright.

mod bad_words;
mod end;
mod ids;
mod logit_bias;
mod ngrams;

use std::collections::BTreeMap;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    vocabulary,
};

use crate::{bad_words::BadWords, ngrams::Ngrams};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Params {
    allowed_token_ids: Option<Vec<TokenId>>,
    logit_bias: BTreeMap<String, f32>,
    bad_words: Vec<BadWord>,
    min_tokens: u32,
    ignore_eos: bool,
    no_repeat_ngram_size: usize,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum BadWord {
    Text(String),
    Ids(Vec<TokenId>),
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
    ngrams: Option<Ngrams>,
    generated: u32,
}

impl Plugin for Rules {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Allowed tokens, biases, bad words, minimum length, no repeated n-grams.",
            params_schema: include_str!("../schema.json"),
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let model = vocabulary::model();
        let parsed = parse(&params, model.vocabulary_size, sequence.max_tokens);
        let (biased, biases) = parsed.map_err(OpenError::InvalidParams)?;
        let words = bad_words::spellings(params.bad_words, vocabulary::encode)
            .map_err(OpenError::InvalidParams)?;
        let mut ngrams = Ngrams::new(params.no_repeat_ngram_size);
        if let Some(ngrams) = &mut ngrams {
            ngrams.push(&sequence.prompt);
        }
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
            ngrams,
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
        if let Some(ngrams) = &mut self.ngrams {
            ngrams.push(accepted);
            edits::deny(ngrams.banned());
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
