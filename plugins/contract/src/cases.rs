//! Worked cases: a position, and what a plugin must do there.
//!
//! ```
//! use sluice_contract::cases::{Kind, Outcome, parse};
//!
//! let cases = parse(
//!     r#"[{"id": "a repeated token is halved", "params": {"penalty": 2},
//!          "generated_tokens": [1], "logits": [4, 4, "-inf"],
//!          "expected_logits": [4, 2, "-inf"]}]"#,
//! )?;
//! // In place of a plugin: a row as it leaves it, and the best token.
//! let (row, token) = (vec![4.0, 2.5, f32::NEG_INFINITY], 0);
//! let outcome = Outcome::Chose { row, token };
//! let held = cases[0].check(Kind::TokenProcessor, || Ok(()), |(), _, _| outcome.clone());
//! assert_eq!(held, Err("the logit of token 1 is 2.5, 2 is expected".to_owned()));
//! # Ok::<_, serde_json::Error>(())
//! ```

mod compare;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{TokenId, phase::Decision};

pub use compare::is_close;

/// What a person who writes cases needs to know.
pub const FORMAT: &str = include_str!("cases/format.txt");

/// Most tokens that a case's sequence may generate.
pub const MAX_TOKENS: u32 = 4096;
/// Longest prompt plus completion of a case's model.
pub const CONTEXT_LENGTH: u32 = 8192;
/// Widest row of a case.
const MAX_WIDTH: usize = 262_144;

/// The kind of failure that a plugin's `open` makes of parameters.
pub const INVALID_PARAMS: &str = "invalid_params";

/// Which of the three exports a plugin has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    TokenProcessor,
    LogitsProcessor,
    Sampler,
}

/// What a plugin did at a position. A processor is followed by a sampler that
/// takes the best token.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A token processor forced these tokens.
    Forced(Vec<TokenId>),
    /// A token processor ended the sequence.
    Stopped,
    /// The row as the sampler saw it, and the token that it chose.
    Chose {
        row: Vec<f32>,
        token: TokenId,
    },
    Failed(Failure),
}

/// Why a plugin could not do its part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Failure {
    /// One of the kinds of fault that the author's guide lists, or
    /// [`INVALID_PARAMS`].
    pub kind: &'static str,
    /// For the plugin's author.
    pub message: String,
}

impl Failure {
    pub fn new(kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }
}

/// A position and what is expected there; [`FORMAT`] says what each member is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub id: String,
    #[serde(default)]
    pub params: Map<String, Value>,
    #[serde(default)]
    pub prompt_tokens: Vec<TokenId>,
    #[serde(default)]
    pub generated_tokens: Vec<TokenId>,
    logits: Vec<Logit>,
    tokens: Option<Vec<String>>,
    #[serde(default)]
    pub end_ids: Vec<TokenId>,
    #[serde(default)]
    pub seed: i64,
    expected_logits: Option<Vec<Logit>>,
    kept_ids: Option<Vec<TokenId>>,
    expected_token: Option<TokenId>,
    expected_decision: Option<Decision>,
    expected_error: Option<String>,
}

/// JSON has no infinities.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum Logit {
    Finite(f32),
    Banned(Banned),
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Banned {
    #[serde(rename = "-inf")]
    Infinite,
}

impl Logit {
    fn value(self) -> f32 {
        match self {
            Self::Finite(value) => value,
            Self::Banned(Banned::Infinite) => f32::NEG_INFINITY,
        }
    }
}

/// Reads a file of cases.
///
/// # Errors
/// Where it is not a list of cases: the line, the column and the member.
pub fn parse(text: &str) -> Result<Vec<Case>, serde_json::Error> {
    serde_json::from_str(text)
}

impl Case {
    /// The model's row.
    pub fn row(&self) -> Vec<f32> {
        self.logits.iter().map(|logit| logit.value()).collect()
    }

    /// The text of each token.
    pub fn texts(&self) -> Vec<String> {
        match &self.tokens {
            Some(texts) => texts.clone(),
            None => (0..self.logits.len()).map(|id| id.to_string()).collect(),
        }
    }

    /// Runs the case: `open` makes a sequence of it, `ask` tells that of the
    /// tokens accepted since the last time and asks about the row.
    ///
    /// # Errors
    /// Why the case does not hold.
    pub fn check<S>(
        &self,
        kind: Kind,
        mut open: impl FnMut() -> Result<S, Failure>,
        mut ask: impl FnMut(&mut S, &[TokenId], &[f32]) -> Outcome,
    ) -> Result<(), String> {
        self.check_itself(kind)?;
        let splits: &[bool] = match kind {
            Kind::TokenProcessor => &[true, false],
            _ => &[true],
        };
        for &at_once in splits {
            let outcome = match open() {
                Ok(sequence) => self.ask(sequence, at_once, &mut ask),
                Err(failure) => Outcome::Failed(failure),
            };
            let how = if at_once { "" } else { ", told one by one" };
            self.compare(&outcome, kind)
                .map_err(|why| format!("{why}{how}"))?;
        }
        Ok(())
    }

    fn ask<S>(
        &self,
        mut sequence: S,
        at_once: bool,
        ask: &mut impl FnMut(&mut S, &[TokenId], &[f32]) -> Outcome,
    ) -> Outcome {
        let row = self.row();
        if at_once {
            return ask(&mut sequence, &self.generated_tokens, &row);
        }
        let mut outcome = ask(&mut sequence, &[], &row);
        for token in &self.generated_tokens {
            if matches!(outcome, Outcome::Failed(_)) {
                break;
            }
            outcome = ask(&mut sequence, std::slice::from_ref(token), &row);
        }
        outcome
    }

    /// What the case alone has wrong.
    fn check_itself(&self, kind: Kind) -> Result<(), String> {
        let width = self.logits.len();
        if width == 0 || width > MAX_WIDTH {
            return Err(format!("it has {width} logits, not 1 to {MAX_WIDTH}"));
        }
        let mut ids = self.prompt_tokens.iter().chain(&self.generated_tokens);
        if let Some(id) = ids.find(|&&id| id as usize >= width) {
            return Err(format!(
                "the token {id} is not below the row's width {width}"
            ));
        }
        if let Some(tokens) = self.tokens.as_ref().filter(|all| all.len() != width) {
            return Err(format!("{} tokens have a text, not {width}", tokens.len()));
        }
        let sees_row = self.expected_logits.is_some() || self.kept_ids.is_some();
        if sees_row && kind == Kind::Sampler {
            return Err("a sampler leaves no row; give expected_token".to_owned());
        }
        let expects = sees_row
            || self.expected_token.is_some()
            || self.expected_decision.is_some()
            || self.expected_error.is_some();
        if expects {
            Ok(())
        } else {
            Err("it expects nothing".to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
