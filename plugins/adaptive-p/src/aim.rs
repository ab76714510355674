//! The probability that the next token should have, from those of the tokens
//! drawn before.

/// How far from the aim a token is still well liked.
const WIDTH: f64 = 0.3;
/// The logit of a token right at the aim.
const PEAK: f64 = 5.0;
/// How fast the logit falls with the distance.
const FALL: f64 = 10.0;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    pub(crate) target: f64,
    pub(crate) decay: f64,
    /// Σ decayⁱ·p of the tokens drawn, the newest first.
    pub(crate) weighted_sum: f64,
    /// Σ decayⁱ.
    pub(crate) total_weight: f64,
}

impl Aim {
    /// As if every token before had met the target.
    pub(crate) fn new(target: f64, decay: f64) -> Self {
        let total_weight = 1.0 / (1.0 - decay);
        Self {
            target,
            decay,
            weighted_sum: target * total_weight,
            total_weight,
        }
    }

    /// As far on the other side of the target as the average is off it.
    fn next(self) -> f64 {
        (2.0 * self.target - self.weighted_sum / self.total_weight).clamp(0.0, 1.0)
    }

    /// The logit of a token of probability `p`: 5 − 10·d² ÷ (1 + d), with d
    /// its distance to the aim in units of 0.3.
    pub(crate) fn logit(self, p: f64) -> f64 {
        let d = (p - self.next()).abs() / WIDTH;
        PEAK - FALL * d * d / (1.0 + d)
    }

    /// Draws one of the kept tokens, given their probabilities in order: the
    /// first whose cumulative changed mass exceeds `u` times the total; if
    /// none, the last. Then counts its probability.
    pub(crate) fn draw(&mut self, probabilities: &[f64], u: f64) -> Option<usize> {
        let mut sum = 0.0;
        let mass = |&p: &f64| {
            sum += (self.logit(p) - PEAK).exp();
            sum
        };
        let masses: Vec<_> = probabilities.iter().map(mass).collect();
        let last = masses.len().checked_sub(1)?;
        let bar = u * masses[last];
        let rank = masses.partition_point(|&mass| mass <= bar).min(last);
        self.weighted_sum = probabilities[rank] + self.decay * self.weighted_sum;
        self.total_weight = 1.0 + self.decay * self.total_weight;
        Some(rank)
    }
}
