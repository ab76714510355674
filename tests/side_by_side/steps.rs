//! mirostat and adaptive-p from their definitions. Both go by what they drew
//! before, so a package's second step is compared with the second step here
//! after the package's own token, and the component's tokens with those drawn
//! here by the published generator.

use serde_json::{Map, Value};
use sluice::engine::TokenId;

use crate::ours::log_sum_exp;

/// The state between steps.
pub enum Steps {
    Mirostat {
        tau: f64,
        eta: f64,
        mu: f64,
    },
    AdaptiveP {
        target: f64,
        decay: f64,
        sum: f64,
        weight: f64,
    },
}

impl Steps {
    pub fn new(plugin: &str, params: &Map<String, Value>) -> Self {
        let number = |name: &str| params[name].as_f64().unwrap();
        if plugin == "mirostat" {
            let (tau, eta) = (number("mirostat_tau"), number("mirostat_eta"));
            let mu = 2.0 * tau;
            Self::Mirostat { tau, eta, mu }
        } else {
            let (target, decay) = (number("adaptive_target"), number("adaptive_decay"));
            Self::AdaptiveP {
                target,
                decay,
                sum: target / (1.0 - decay),
                weight: 1.0 / (1.0 - decay),
            }
        }
    }

    /// The logits that are drawn from.
    pub fn logits(&self, row: &[f32]) -> Vec<f64> {
        let log_sum_exp = log_sum_exp(row);
        let log_p = row.iter().map(|&l| f64::from(l) - log_sum_exp);
        match *self {
            Self::Mirostat { mu, .. } => {
                let bound = -mu * std::f64::consts::LN_2;
                let best = log_p.clone().fold(f64::NEG_INFINITY, f64::max);
                let keep = |l: f64| l >= bound.min(best) && l > f64::NEG_INFINITY;
                let logits = log_p.zip(row).map(|(log_p, &l)| {
                    if keep(log_p) {
                        l.into()
                    } else {
                        f64::NEG_INFINITY
                    }
                });
                logits.collect()
            }
            Self::AdaptiveP {
                target,
                sum,
                weight,
                ..
            } => {
                let aim = (2.0 * target - sum / weight).clamp(0.0, 1.0);
                let logits = log_p.map(|log_p| {
                    if log_p == f64::NEG_INFINITY {
                        return log_p;
                    }
                    let d = (log_p.exp() - aim).abs() / 0.3;
                    5.0 - 10.0 * d * d / (1.0 + d)
                });
                logits.collect()
            }
        }
    }

    /// Goes on from the token that was drawn.
    pub fn follow(&mut self, row: &[f32], token: TokenId) {
        let drawn_from = self.logits(row);
        let l = f64::from(row[token as usize]);
        match self {
            Self::Mirostat { tau, eta, mu } => {
                let kept: Vec<f32> = drawn_from.iter().map(|&l| l as f32).collect();
                let surprise = (log_sum_exp(&kept) - l) / std::f64::consts::LN_2;
                *mu -= *eta * (surprise - *tau);
            }
            Self::AdaptiveP {
                decay, sum, weight, ..
            } => {
                *sum = (l - log_sum_exp(row)).exp() + *decay * *sum;
                *weight = 1.0 + *decay * *weight;
            }
        }
    }

    /// The token at `u`, in the order of the row's own logits.
    pub fn draw(&self, row: &[f32], u: f64) -> TokenId {
        let logits = self.logits(row);
        let mut order: Vec<usize> = (0..row.len()).filter(|&id| row[id].is_finite()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        let best = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let masses = order.iter().scan(0.0, |sum, &id| {
            *sum += (logits[id] - best).exp();
            Some(*sum)
        });
        let masses: Vec<f64> = masses.collect();
        let bar = u * masses[masses.len() - 1];
        order[masses.partition_point(|&mass| mass <= bar)] as TokenId
    }
}
