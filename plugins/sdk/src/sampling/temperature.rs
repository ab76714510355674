//! `l / T`; in its place dynamic temperature, where entropy sets T; then
//! smoothing. All keep the order.
//!
//! Dynamic temperature: kalomaze 2023, text-generation-webui, pull request
//! 5174: T lies between max(0, T − range) and T + range, by (entropy ÷ its
//! maximum, the logarithm of how many tokens there are) to a power.

use super::{Params, quadratic};
use crate::ranking::{Ranking, Row};

/// Below this the best token is taken and truncation is skipped.
const GREEDY_BELOW: f32 = 1e-5;

pub(super) fn is_greedy(temperature: f32) -> bool {
    temperature < GREEDY_BELOW
}

pub(super) fn apply<R: Row>(ranking: &mut Ranking<R>, params: &Params) {
    let temperature = dynamic(ranking, params);
    if is_greedy(temperature) {
        ranking.keep(1);
        return;
    }
    let (factor, curve) = (params.smoothing_factor, params.smoothing_curve);
    let smoothing = (factor > 0.0).then(|| quadratic::coefficients(factor, curve));
    ranking.set_shape(temperature, smoothing);
}

/// The temperature that the kept tokens get. A single token has none to
/// choose between: its logit is left alone.
fn dynamic<R: Row>(ranking: &mut Ranking<R>, params: &Params) -> f32 {
    let (temperature, range) = (f64::from(params.temperature), params.dynatemp_range);
    if range <= 0.0 {
        return params.temperature;
    }
    if !ranking.has(1) {
        return 1.0;
    }
    let most = (ranking.count() as f64).ln();
    let share = (ranking.entropy() / most).min(1.0);
    let (low, high) = ((temperature - range).max(0.0), temperature + range);
    (low + (high - low) * share.powf(params.dynatemp_exponent)) as f32
}

#[cfg(test)]
mod tests {
    use super::{Params, apply};
    use crate::ranking::Ranking;

    fn logits(row: &[f32], params: &Params) -> Vec<f64> {
        let mut ranking = Ranking::new(row);
        apply(&mut ranking, params);
        ranking.logits()
    }

    #[test]
    fn the_highest_entropy_gives_the_highest_temperature() {
        // Four equal tokens at T + range = 2, one alone unchanged.
        let params = Params {
            dynatemp_range: 1.0,
            dynatemp_exponent: 3.0,
            ..Params::default()
        };
        for l in logits(&[4.0, 4.0, f32::NEG_INFINITY, 4.0, 4.0], &params) {
            assert!((l - 2.0).abs() < 1e-6, "{l}");
        }
        assert_eq!(logits(&[f32::NEG_INFINITY, 3.0], &params), [3.0]);
    }

    #[test]
    fn smoothing_comes_after_temperature() {
        // d = −2 / 2; 2 − 0.5·d².
        let params = Params {
            temperature: 2.0,
            smoothing_factor: 0.5,
            ..Params::default()
        };
        assert_eq!(logits(&[4.0, 2.0], &params), [2.0, 1.5]);
    }
}
