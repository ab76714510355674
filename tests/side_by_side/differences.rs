//! Where we differ on purpose: `differences.json` has a row for each, with
//! what the package makes of it (`theirs`, recorded) and what we do (`ours`,
//! worked by hand).

use serde::Deserialize;
use serde_json::{Map, Value};
use sluice::engine::TokenId;

use crate::{ours::Ours, threads};

#[derive(Debug, Deserialize)]
pub struct Difference {
    pub package: String,
    logits: Vec<Value>,
    pub params: Map<String, Value>,
    #[serde(default)]
    pub prompt: Vec<TokenId>,
    #[serde(default)]
    pub generated: Vec<TokenId>,
    #[serde(default)]
    pub end_ids: Vec<TokenId>,
    ours: Vec<Value>,
    theirs: Value,
    why: String,
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NEG_INFINITY)
}

impl Difference {
    pub fn logits(&self) -> Vec<f32> {
        self.logits.iter().map(|l| number(l) as f32).collect()
    }

    fn check(&self, found: &[f64]) {
        let close = |(&found, expected): (&f64, &Value)| {
            let expected = number(expected);
            found == expected || (found - expected).abs() < 1e-5
        };
        assert_eq!(found.len(), self.ours.len());
        assert!(
            found.iter().zip(&self.ours).all(close),
            "{found:?}: {self:?}"
        );
        let theirs = self.theirs.as_array();
        assert!(
            !theirs.is_some_and(|theirs| found.iter().zip(theirs).all(close)),
            "no difference: {self:?}"
        );
        assert!(!self.why.is_empty());
    }
}

#[test]
fn where_we_differ_on_purpose() {
    let all: Vec<Difference> = serde_json::from_str(include_str!("differences.json")).unwrap();
    assert_eq!(all.len(), 21);
    let ours = Ours::new();
    threads().install(|| {
        for difference in &all {
            difference.check(&ours.different(difference));
        }
    });
}
