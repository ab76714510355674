use serde::Deserialize;

use super::temperature;

/// What a request may ask of a sampler. Every stage is off by default. The
/// ranges are those of the `sampler` plugin's schema, which the host checks.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// 0 to 100; 1 is off. Below 10⁻⁵ the best token is taken and no other
    /// stage matters.
    pub temperature: f32,
    /// How far entropy moves the temperature; 0 is off.
    pub dynatemp_range: f64,
    /// At least 0.
    pub dynatemp_exponent: f64,
    /// At least 0; 0 is off.
    pub smoothing_factor: f64,
    /// 1 to 3.
    pub smoothing_curve: f64,
    /// At most 100; 0 or less is off.
    pub top_n_sigma: f64,
    /// Above 0 up to 1, which is off.
    pub typical_p: f64,
    /// 0, −1, and the vocabulary size or more are off.
    pub top_k: i64,
    /// 0 to 1, which is off.
    pub top_p: f64,
    /// 0, which is off, up to but not including 1.
    pub epsilon_cutoff: f64,
    /// 0, which is off, up to but not including 1.
    pub eta_cutoff: f64,
    /// 0, which is off, to 1.
    pub top_a: f64,
    /// 0, which is off, to 1.
    pub min_p: f64,
    /// 0, which is off, to 1.
    pub xtc_probability: f64,
    /// 0 to 1; above ½ is off.
    pub xtc_threshold: f64,
    /// How many tokens every truncating stage keeps at least.
    pub min_keep: usize,
    /// Names of stages; see [`Stage`](super::Stage).
    pub order: Option<Vec<String>>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            smoothing_factor: 0.0,
            smoothing_curve: 1.0,
            top_n_sigma: 0.0,
            typical_p: 1.0,
            top_k: 0,
            top_p: 1.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            top_a: 0.0,
            min_p: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 1,
            order: None,
        }
    }
}

impl Params {
    /// Whether the best token is always taken.
    pub fn is_greedy(&self) -> bool {
        temperature::is_greedy(self.temperature)
    }
}
