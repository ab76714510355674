//! What a chain does at one position, and whether two did the same.

use crate::engine::{Chain, Fault, Plan, TokenId};
use crate::plugin::{Kind, OpenChain};

/// Logits are the same within this, relative to those above 1: edits may be
/// made in another order.
const TOLERANCE: f32 = 1e-5;

/// What a chain did at a position.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// Its token processor forced these tokens.
    Forced(Vec<TokenId>),
    /// Its token processor ended the sequence.
    Stopped,
    /// The row as the sampler saw it, and the token that it chose.
    Chose {
        row: Vec<f32>,
        token: TokenId,
    },
    Failed(Fault),
}

/// Asks a chain about the position after `accepted`.
pub(super) fn ask(chain: &mut OpenChain, accepted: &[TokenId], row: &[f32]) -> Outcome {
    match chain.plan(accepted) {
        Ok(Plan::Force(tokens)) => Outcome::Forced(tokens),
        Ok(Plan::Stop) => Outcome::Stopped,
        Ok(Plan::Sample) => finish(chain, row),
        Err(fault) => Outcome::Failed(fault),
    }
}

fn finish(chain: &mut OpenChain, row: &[f32]) -> Outcome {
    let mut row = row.to_vec();
    match chain.finish_values(&mut row) {
        Ok(token) => Outcome::Chose { row, token },
        Err(fault) => Outcome::Failed(fault),
    }
}

pub(super) fn is_close(a: f32, b: f32) -> bool {
    // Equal infinities have no difference.
    let near = || (a - b).abs() <= TOLERANCE * a.abs().max(1.0);
    a.total_cmp(&b).is_eq() || (a.is_finite() && b.is_finite() && near())
}

impl Outcome {
    /// Whether the row was left as it was `given`, of which the padding may be
    /// cut off, and nothing else was done.
    pub(super) fn leaves(&self, given: &[f32]) -> bool {
        match self {
            Self::Chose { row, .. } => row.iter().zip(given).all(|(a, b)| a.total_cmp(b).is_eq()),
            _ => false,
        }
    }

    /// How `other` differs from this, in words; `None` if a plugin of this kind
    /// did the same in both.
    pub(super) fn difference(&self, other: &Self, kind: Kind) -> Option<String> {
        let differs = match (self, other) {
            (Self::Chose { row: a, token: s }, Self::Chose { row: b, token: t }) => {
                if kind == Kind::Sampler {
                    return (s != t).then(|| format!("token {s} is chosen, or {t}"));
                }
                let id = (0..a.len()).find(|&id| !is_close(a[id], b[id]))?;
                return Some(format!(
                    "the logit of token {id} becomes {}, or {}",
                    a[id], b[id]
                ));
            }
            (Self::Forced(a), Self::Forced(b)) => a != b,
            (Self::Stopped, Self::Stopped) => false,
            (Self::Failed(a), Self::Failed(b)) => a.kind != b.kind,
            _ => true,
        };
        differs.then(|| format!("{}, or {}", self.words(), other.words()))
    }

    fn words(&self) -> String {
        match self {
            Self::Forced(tokens) => format!("it forces {tokens:?}"),
            Self::Stopped => "it stops".to_owned(),
            Self::Chose { .. } => "it decides nothing".to_owned(),
            Self::Failed(fault) => format!("it fails ({})", fault.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chose(row: &[f32], token: TokenId) -> Outcome {
        let row = row.to_vec();
        Outcome::Chose { row, token }
    }

    #[test]
    fn processors_differ_in_rows_and_samplers_in_tokens() {
        let a = chose(&[1.0, f32::NEG_INFINITY], 0);
        let rounded = chose(&[1.000_001, f32::NEG_INFINITY], 0);
        let open = chose(&[1.0, 0.0], 0);
        assert_eq!(a.difference(&rounded, Kind::TokenProcessor), None);
        assert!(a.difference(&open, Kind::TokenProcessor).is_some());
        assert_eq!(a.difference(&open, Kind::Sampler), None);
        let other = chose(&[1.0, f32::NEG_INFINITY], 1);
        assert!(a.difference(&other, Kind::Sampler).is_some());
    }

    #[test]
    fn a_row_is_left_alone_but_for_its_padding() {
        let outcome = chose(&[1.0, f32::NEG_INFINITY, f32::NEG_INFINITY], 0);
        assert!(outcome.leaves(&[1.0, f32::NEG_INFINITY]));
        assert!(!outcome.leaves(&[1.0, 0.0]));
        assert!(!Outcome::Stopped.leaves(&[1.0]));
    }

    #[test]
    fn decisions_differ_from_none() {
        let forced = Outcome::Forced(vec![1]);
        let kind = Kind::TokenProcessor;
        assert_eq!(forced.difference(&Outcome::Forced(vec![1]), kind), None);
        assert!(forced.difference(&Outcome::Forced(vec![2]), kind).is_some());
        assert!(forced.difference(&Outcome::Stopped, kind).is_some());
        assert!(chose(&[1.0], 0).difference(&forced, kind).is_some());
    }
}
