//! What a plugin did, held against what a case expects.

use super::{Case, Kind, Outcome};
use crate::{TokenId, phase::Decision};

/// Logits are the same within this, relative to those above 1: edits may be
/// made in another order.
const TOLERANCE: f32 = 1e-5;

/// Whether two logits are the same to 1e-5 of max(1, |a|). Infinities are the
/// same as themselves alone.
pub fn is_close(a: f32, b: f32) -> bool {
    // Equal infinities have no difference.
    let near = || (a - b).abs() <= TOLERANCE * a.abs().max(1.0);
    a.total_cmp(&b).is_eq() || (a.is_finite() && b.is_finite() && near())
}

impl Case {
    pub(super) fn compare(&self, outcome: &Outcome, kind: Kind) -> Result<(), String> {
        match outcome {
            Outcome::Failed(failure) => match &self.expected_error {
                Some(expected) if expected == failure.kind => Ok(()),
                Some(expected) => Err(format!(
                    "the error {expected} is expected, it fails with {failure}"
                )),
                None => Err(format!("it fails with {failure}")),
            },
            _ if self.expected_error.is_some() => Err("it does not fail".to_owned()),
            Outcome::Forced(tokens) => {
                self.compare_decision(Some(&Decision::Force(tokens.clone())))
            }
            Outcome::Stopped => self.compare_decision(Some(&Decision::Stop)),
            Outcome::Chose { row, token } => {
                self.compare_decision(None)?;
                if kind != Kind::Sampler {
                    self.compare_row(row)?;
                }
                match self.expected_token {
                    Some(expected) if expected != *token => {
                        Err(format!("the token is {token}, {expected} is expected"))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    fn compare_decision(&self, decision: Option<&Decision>) -> Result<(), String> {
        if self.expected_decision.as_ref() == decision {
            return Ok(());
        }
        let words = |decision: Option<&Decision>| match decision {
            Some(Decision::Force(tokens)) => format!("forces {tokens:?}"),
            Some(Decision::Stop) => "stops".to_owned(),
            None => "decides nothing".to_owned(),
        };
        Err(format!(
            "it {}; expected is that it {}",
            words(decision),
            words(self.expected_decision.as_ref())
        ))
    }

    fn compare_row(&self, row: &[f32]) -> Result<(), String> {
        if let Some(expected) = &self.expected_logits {
            if expected.len() != row.len() {
                return Err(format!(
                    "expected_logits has {} values, the row {}",
                    expected.len(),
                    row.len()
                ));
            }
            for (id, (found, expected)) in row.iter().zip(expected).enumerate() {
                let expected = expected.value();
                if !is_close(expected, *found) {
                    return Err(format!(
                        "the logit of token {id} is {found}, {expected} is expected"
                    ));
                }
            }
        }
        let Some(expected) = &self.kept_ids else {
            return Ok(());
        };
        let kept: Vec<TokenId> = (0..)
            .zip(row)
            .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
            .map(|(id, _)| id)
            .collect();
        if kept == *expected {
            Ok(())
        } else {
            Err(format!("{kept:?} are kept, {expected:?} is expected"))
        }
    }
}
