//! A row's tokens from the best down, read from the host as far as needed.

use sluice_plugin::{TokenId, logits::Candidates};

/// How many tokens to ask for first when nothing says how many are needed.
const FIRST: usize = 64;
/// How much more to ask for when they do not suffice.
const GROWTH: usize = 4;

/// Where tokens are read from: the host, or in tests a slice.
pub(crate) trait Row {
    fn top(&self, k: u32) -> Candidates;
    fn log_sum_exp(&self, temperature: f32) -> f64;
}

/// The tokens in order, as many as are kept. Masses are sums of
/// exp((l − best) / temperature), in f64 and in order, so that they do not
/// depend on how many tokens were read at a time.
pub(crate) struct Ranking<R> {
    row: R,
    temperature: f32,
    read: Candidates,
    /// `masses[n]` is the mass of the n best; grows on demand.
    masses: Vec<f64>,
    /// No token follows those read.
    exhausted: bool,
    /// How many tokens are kept; absent: all.
    kept: Option<usize>,
}

impl<R: Row> Ranking<R> {
    /// Keeps the `limit` best tokens of `row`, or all.
    pub(crate) fn new(row: R, temperature: f32, limit: Option<usize>) -> Self {
        let mut ranking = Self {
            row,
            temperature,
            read: Candidates {
                ids: Vec::new(),
                logits: Vec::new(),
            },
            masses: vec![0.0],
            exhausted: false,
            kept: None,
        };
        ranking.read(limit.unwrap_or(FIRST));
        ranking.kept = limit;
        ranking
    }

    fn read(&mut self, k: usize) {
        self.read = self.row.top(u32::try_from(k).unwrap_or(u32::MAX));
        self.exhausted = self.read.ids.len() < k;
    }

    /// The token of this rank, 0 the best, if one is kept there.
    pub(crate) fn id(&mut self, rank: usize) -> Option<TokenId> {
        self.has(rank).then(|| self.read.ids[rank])
    }

    /// Whether a token of this rank is kept.
    pub(crate) fn has(&mut self, rank: usize) -> bool {
        if self.kept.is_some_and(|kept| rank >= kept) {
            return false;
        }
        while rank >= self.read.ids.len() && !self.exhausted {
            self.read(self.read.ids.len() * GROWTH);
        }
        rank < self.read.ids.len()
    }

    /// ln of how likely the token of this rank is beside the best; at most 0.
    pub(crate) fn log_ratio(&self, rank: usize) -> f64 {
        let distance = f64::from(self.read.logits[rank]) - f64::from(self.read.logits[0]);
        distance / f64::from(self.temperature)
    }

    /// How likely the token of this rank is beside the best.
    pub(crate) fn ratio(&self, rank: usize) -> f64 {
        self.log_ratio(rank).exp()
    }

    /// The mass of the `n` best tokens, all of them kept.
    pub(crate) fn mass(&mut self, n: usize) -> f64 {
        while self.masses.len() <= n {
            let rank = self.masses.len() - 1;
            let mass = self.masses[rank] + self.ratio(rank);
            self.masses.push(mass);
        }
        self.masses[n]
    }

    /// The mass of all kept tokens.
    pub(crate) fn total(&mut self) -> f64 {
        if let Some(kept) = self.kept
            && self.has(kept - 1)
        {
            return self.mass(kept);
        }
        if self.exhausted {
            return self.mass(self.read.ids.len());
        }
        let best = f64::from(self.read.logits[0]) / f64::from(self.temperature);
        (self.row.log_sum_exp(self.temperature) - best).exp()
    }

    /// Keeps the `n` best of the tokens kept, at least one.
    pub(crate) fn keep(&mut self, n: usize) {
        self.kept = Some(n);
    }
}
