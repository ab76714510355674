//! What a draw, mirostat and adaptive-p do, in plain arithmetic, so that the
//! components are checked by something else.

use sluice::engine::TokenId;
use std::f64::consts::LN_2;

/// These tokens from the best down.
pub fn in_order(logits: &[f32], kept: &[TokenId]) -> Vec<TokenId> {
    let mut order = kept.to_vec();
    order.sort_by(|&a, &b| {
        logits[b as usize]
            .total_cmp(&logits[a as usize])
            .then(a.cmp(&b))
    });
    order
}

/// The probability of each.
fn probabilities(logits: &[f32], tokens: &[TokenId]) -> Vec<f64> {
    let best = f64::from(logits[tokens[0] as usize]);
    let mass = |id: &TokenId| (f64::from(logits[*id as usize]) - best).exp();
    let total: f64 = tokens.iter().map(mass).sum();
    tokens.iter().map(|id| mass(id) / total).collect()
}

/// The first whose cumulative mass exceeds `u`, else the last.
fn at(masses: &[f64], u: f64) -> usize {
    let total: f64 = masses.iter().sum();
    let mut sum = 0.0;
    let past = masses.iter().position(|mass| {
        sum += mass;
        sum > u * total
    });
    past.unwrap_or(masses.len() - 1)
}

/// The token that `u` draws from `kept` with these logits.
pub fn drawn(logits: &[f32], kept: &[TokenId], u: f64) -> TokenId {
    let order = in_order(logits, kept);
    order[at(&probabilities(logits, &order), u)]
}

/// Of `kept`, the share that one has.
pub fn share(logits: &[f32], kept: &[TokenId], id: TokenId) -> f64 {
    let place = kept.iter().position(|&other| other == id).unwrap();
    probabilities(logits, kept)[place]
}

/// Mirostat's second version.
pub struct Mirostat {
    pub mu: f64,
    pub tau: f64,
    pub eta: f64,
}

impl Mirostat {
    pub fn kept(&self, logits: &[f32]) -> Vec<TokenId> {
        let everything: Vec<_> = (0..logits.len() as TokenId).collect();
        let order = in_order(logits, &everything);
        let p = probabilities(logits, &order);
        let kept = p.iter().filter(|p| -p.ln() / LN_2 <= self.mu).count();
        order[..kept.max(1)].to_vec()
    }

    pub fn learn(&mut self, logits: &[f32], kept: &[TokenId], token: TokenId) {
        let surprise = -share(logits, kept, token).ln() / LN_2;
        self.mu -= self.eta * (surprise - self.tau);
    }
}

/// The running sums of adaptive-p.
pub struct AdaptiveP {
    pub target: f64,
    pub decay: f64,
    pub weighted_sum: f64,
    pub total_weight: f64,
}

impl AdaptiveP {
    pub fn changed(&self, p: f64) -> f64 {
        let aim = 2.0 * self.target - self.weighted_sum / self.total_weight;
        let d = (p - aim.clamp(0.0, 1.0)).abs() / 0.3;
        5.0 - 10.0 * d * d / (1.0 + d)
    }

    /// The token that `u` draws, after which its probability is counted.
    pub fn draw(&mut self, logits: &[f32], u: f64) -> TokenId {
        let everything: Vec<_> = (0..logits.len() as TokenId).collect();
        let order = in_order(logits, &everything);
        let p = probabilities(logits, &order);
        let masses: Vec<_> = p.iter().map(|&p| self.changed(p).exp()).collect();
        let place = at(&masses, u);
        self.weighted_sum = p[place] + self.decay * self.weighted_sum;
        self.total_weight = 1.0 + self.decay * self.total_weight;
        order[place]
    }
}
