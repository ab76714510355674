//! A row's tokens from the best down, read from the host as far as needed.

use std::{borrow::Cow, cmp::Ordering};

use crate::{
    TokenId,
    logits::{self, Candidates},
    row,
};

/// How many tokens to ask for first when nothing says how many are needed.
const FIRST: usize = 64;
/// How much more to ask for when they do not suffice.
const GROWTH: usize = 4;

/// A logits row, in which negative infinity is a banned token.
pub trait Row {
    /// The `k` best tokens: descending by logit, equal logits ascending by id,
    /// banned tokens left out.
    fn top(&self, k: u32) -> Candidates;
    /// ln Σ exp(logit ÷ temperature), where `temperature` is above 0.
    fn log_sum_exp(&self, temperature: f32) -> f64;
    /// All logits by id.
    fn whole(&self) -> Cow<'_, [f32]>;
}

/// The row that the host offers at this position.
#[derive(Clone, Copy, Debug)]
pub struct HostRow;

impl Row for HostRow {
    fn top(&self, k: u32) -> Candidates {
        logits::top(k)
    }

    fn log_sum_exp(&self, temperature: f32) -> f64 {
        logits::log_sum_exp(temperature)
    }

    fn whole(&self) -> Cow<'_, [f32]> {
        logits::row().into()
    }
}

/// A row at hand, for tests and experiments outside a component.
impl Row for &[f32] {
    fn top(&self, k: u32) -> Candidates {
        let mut order: Vec<(TokenId, f32)> = (0..).zip(self.iter().copied()).collect();
        order.retain(|&(_, logit)| logit > f32::NEG_INFINITY);
        let best_first = |a: &(TokenId, f32), b: &(TokenId, f32)| {
            let by_logit = b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal);
            by_logit.then(a.0.cmp(&b.0))
        };
        let k = k as usize;
        if k < order.len() {
            order.select_nth_unstable_by(k, best_first);
            order.truncate(k);
        }
        order.sort_unstable_by(best_first);
        let (ids, logits) = order.into_iter().unzip();
        Candidates { ids, logits }
    }

    fn log_sum_exp(&self, temperature: f32) -> f64 {
        let scaled = |logit: &f32| f64::from(*logit) / f64::from(temperature);
        let max = self.iter().map(scaled).fold(f64::NEG_INFINITY, f64::max);
        max + self
            .iter()
            .map(|l| (scaled(l) - max).exp())
            .sum::<f64>()
            .ln()
    }

    fn whole(&self) -> Cow<'_, [f32]> {
        Cow::Borrowed(self)
    }
}

/// What temperature and smoothing make of logits. Neither changes the order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    /// Divides first.
    temperature: f32,
    /// 1 ÷ temperature.
    scale: f64,
    smoothing: Option<Smoothing>,
}

/// −a·d² + b·d³ in place of the distance d to the logit `best`, which may be
/// dropped later on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Smoothing {
    best: f32,
    a: f64,
    b: f64,
}

impl Shape {
    const PLAIN: Self = Self {
        temperature: 1.0,
        scale: 1.0,
        smoothing: None,
    };

    /// How far apart two logits are once changed. f64 holds the cube of any
    /// distance between f32 values.
    #[inline]
    fn distance(self, logit: f32, from: f32) -> f64 {
        match self.smoothing {
            None => (f64::from(logit) - f64::from(from)) * self.scale,
            Some(smoothing) => smoothing.bent(logit, self.scale) - smoothing.bent(from, self.scale),
        }
    }
}

impl Smoothing {
    #[inline]
    fn bent(self, logit: f32, scale: f64) -> f64 {
        let d = (f64::from(logit) - f64::from(self.best)) * scale;
        self.b * d * d * d - self.a * d * d
    }
}

/// The tokens that are kept, in order: descending by logit, equal logits
/// ascending by id. Masses are sums of exp(l − best), in f64 and in order, so
/// that they do not depend on how many tokens were read at a time. Ranks count
/// from 0, the best.
#[derive(Debug)]
pub struct Ranking<R> {
    row: R,
    shape: Shape,
    /// The best tokens of those not dropped, as far as read.
    read: Candidates,
    /// The logits of better tokens that are not kept.
    dropped: Vec<f32>,
    /// `masses[n]` is the mass of the n best; grows on demand.
    masses: Vec<f64>,
    /// The mass of all that are kept, once asked for.
    total: Option<f64>,
    /// No token follows those read.
    exhausted: bool,
    /// How many tokens are kept at most; absent: all.
    limit: Option<usize>,
}

impl<R: Row> Ranking<R> {
    /// All tokens of `row` that are not banned.
    pub fn new(row: R) -> Self {
        Self {
            row,
            shape: Shape::PLAIN,
            read: Candidates {
                ids: Vec::new(),
                logits: Vec::new(),
            },
            dropped: Vec::new(),
            masses: vec![0.0],
            total: None,
            exhausted: false,
            limit: None,
        }
    }

    /// Reads the `k` best, all but those dropped.
    fn read(&mut self, k: usize) {
        let gone = self.dropped.len();
        let k = k.saturating_add(gone);
        let mut best = self.row.top(u32::try_from(k).unwrap_or(u32::MAX));
        self.exhausted = best.ids.len() < k;
        if gone > 0 {
            best.ids.drain(..gone.min(best.ids.len()));
            best.logits.drain(..gone.min(best.logits.len()));
        }
        self.read = best;
    }

    /// Whether a token of this rank is kept.
    pub fn has(&mut self, rank: usize) -> bool {
        if self.limit.is_some_and(|limit| rank >= limit) {
            return false;
        }
        while rank >= self.read.ids.len() && !self.exhausted {
            let more = (self.read.ids.len() * GROWTH).max(FIRST);
            self.read(self.limit.unwrap_or(more));
        }
        rank < self.read.ids.len()
    }

    /// The token of this rank, if one is kept there.
    pub fn id(&mut self, rank: usize) -> Option<TokenId> {
        self.has(rank).then(|| self.read.ids[rank])
    }

    /// The token's logit in the row as it was. There must be one, here and in
    /// the next two.
    pub(crate) fn logit(&self, rank: usize) -> f32 {
        self.read.logits[rank]
    }

    /// ln of how likely the token of this rank is beside the best; at most 0.
    ///
    /// # Panics
    /// Unless [`has`](Self::has) said that there is one.
    pub fn log_ratio(&self, rank: usize) -> f64 {
        self.shape.distance(self.logit(rank), self.logit(0))
    }

    /// How likely the token of this rank is beside the best.
    ///
    /// # Panics
    /// Unless [`has`](Self::has) said that there is one.
    pub fn ratio(&self, rank: usize) -> f64 {
        self.log_ratio(rank).exp()
    }

    /// The mass of the `n` best tokens, the best having 1. So many must be
    /// kept.
    ///
    /// # Panics
    /// Unless [`has`](Self::has) said that there are so many.
    pub fn mass(&mut self, n: usize) -> f64 {
        while self.masses.len() <= n {
            let rank = self.masses.len() - 1;
            let mass = self.masses[rank] + self.ratio(rank);
            self.masses.push(mass);
        }
        self.masses[n]
    }

    /// How many are kept, if that is known without looking at the whole row;
    /// all of them are then read.
    fn counted(&mut self) -> Option<usize> {
        if let Some(limit) = self.limit
            && (limit == 0 || self.has(limit - 1))
        {
            return Some(limit);
        }
        self.exhausted.then_some(self.read.ids.len())
    }

    /// The mass of all kept tokens, the best having 1; 0 if there is none.
    pub fn total(&mut self) -> f64 {
        if let Some(total) = self.total {
            return total;
        }
        let total = match self.counted() {
            Some(n) => self.mass(n),
            None => self.total_of_row(),
        };
        self.total = Some(total);
        total
    }

    fn total_of_row(&mut self) -> f64 {
        /// Above this a difference of sums has too few digits left.
        const LARGE: f64 = 1e6;
        if !self.has(0) {
            return 0.0;
        }
        let temperature = self.shape.temperature;
        let best = f64::from(self.logit(0)) / f64::from(temperature);
        let plain = self.shape.smoothing.is_none() && self.dropped.is_empty();
        if plain && best.abs() < LARGE {
            return (self.row.log_sum_exp(temperature) - best).exp();
        }
        self.sums_of_row().mass
    }

    /// Over all tokens but those dropped.
    fn sums_of_row(&self) -> row::ExpSums {
        let row = self.row.whole();
        let best = self.logit(0);
        let shape = self.shape;
        let kept = |logit: f32, level: f32| {
            if logit > best {
                f32::NEG_INFINITY
            } else {
                level
            }
        };
        let mut sums = if shape.smoothing.is_none() {
            let scale = shape.scale as f32;
            row::exp_sums(&row, |logit| kept(logit, (logit - best) * scale))
        } else {
            row::exp_sums(&row, |logit| {
                kept(logit, shape.distance(logit, best) as f32)
            })
        };
        sums.mass -= self.dropped_equals() as f64;
        sums
    }

    /// How many tokens as good as the best are dropped.
    fn dropped_equals(&self) -> usize {
        let best = self.logit(0);
        self.dropped.iter().filter(|&&logit| logit <= best).count()
    }

    /// Entropy in nats of the distribution over the kept tokens.
    pub fn entropy(&mut self) -> f64 {
        if !self.has(0) {
            return 0.0;
        }
        let sums = match self.counted() {
            None => self.sums_of_row(),
            Some(n) => row::ExpSums {
                mass: self.total(),
                weighted: (0..n)
                    .map(|rank| self.log_ratio(rank))
                    .map(|level| level.max(f64::MIN) * level.exp())
                    .sum(),
            },
        };
        sums.entropy().max(0.0)
    }

    /// Standard deviation of the population of kept logits, as changed.
    pub(crate) fn deviation(&mut self) -> f64 {
        if !self.has(0) {
            return 0.0;
        }
        let best = self.logit(0);
        let shape = self.shape;
        let distance = |logit| {
            if logit > best {
                f64::NEG_INFINITY
            } else {
                shape.distance(logit, best)
            }
        };
        let sums = match self.counted() {
            Some(n) => row::power_sums(&self.read.logits[..n], distance),
            // Dropped tokens as good as the best are at distance 0.
            None => row::power_sums(&self.row.whole(), distance),
        };
        sums.deviation(self.count())
    }

    /// How many tokens are kept.
    pub(crate) fn count(&mut self) -> usize {
        match self.counted() {
            Some(n) => n,
            None => row::count(&self.row.whole()) - self.dropped.len(),
        }
    }

    /// From here on logits are divided by `temperature`, above 0; then, with
    /// `smoothing` (a, b), both at least 0, −a·d² + b·d³ takes the place of
    /// the distance d to the best. Once for a row.
    pub(crate) fn set_shape(&mut self, temperature: f32, smoothing: Option<(f64, f64)>) {
        let best = |ranking: &mut Self| ranking.has(0).then(|| ranking.logit(0));
        self.shape = Shape {
            temperature,
            scale: 1.0 / f64::from(temperature),
            smoothing: smoothing.and_then(|(a, b)| best(self).map(|best| Smoothing { best, a, b })),
        };
        self.forget_masses();
    }

    fn forget_masses(&mut self) {
        self.masses.truncate(1);
        self.total = None;
    }

    /// How many of the best tokens pass, at least `min_keep` of those there
    /// are. The first that does not pass ends the head.
    pub(crate) fn head(
        &mut self,
        min_keep: usize,
        passes: impl Fn(&mut Self, usize) -> bool,
    ) -> usize {
        let mut n = 0;
        while self.has(n) && (n < min_keep || passes(self, n)) {
            n += 1;
        }
        n
    }

    /// Keeps the `n` best of the tokens kept.
    pub fn keep(&mut self, n: usize) {
        self.limit = Some(self.limit.map_or(n, |limit| limit.min(n)));
        self.total = None;
    }

    /// Keeps all but the `n` best of the tokens kept. So many must be kept.
    ///
    /// # Panics
    /// Unless [`has`](Self::has) said that there are so many.
    pub fn drop_best(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        self.dropped.extend(self.read.logits.drain(..n));
        self.read.ids.drain(..n);
        self.limit = self.limit.map(|limit| limit - n);
        self.forget_masses();
    }

    /// Keeps the tokens of these ranks, which ascend and were all read.
    pub(crate) fn keep_ranks(&mut self, ranks: impl Iterator<Item = usize> + Clone) {
        self.read = Candidates {
            ids: ranks.clone().map(|rank| self.read.ids[rank]).collect(),
            logits: ranks.map(|rank| self.read.logits[rank]).collect(),
        };
        self.exhausted = true;
        self.limit = None;
        self.forget_masses();
    }

    /// The rank of the first kept token, in order, whose cumulative mass
    /// exceeds `u` times the total; if none, the last. None if no token is
    /// kept.
    pub fn draw(&mut self, u: f64) -> Option<usize> {
        if !self.has(0) {
            return None;
        }
        let bar = u * self.total();
        let mut rank = 0;
        while self.mass(rank + 1) <= bar && self.has(rank + 1) {
            rank += 1;
        }
        Some(rank)
    }

    fn read_all(&mut self) -> usize {
        if let Some(n) = self.counted() {
            return n;
        }
        self.read(self.row.whole().len() + 1);
        self.read.ids.len()
    }

    /// All kept tokens, in order.
    pub fn ids(&mut self) -> Vec<TokenId> {
        let n = self.read_all();
        self.read.ids[..n].to_vec()
    }

    /// The logits of all kept tokens, in order, as temperature and smoothing
    /// left them.
    pub fn logits(&mut self) -> Vec<f64> {
        let n = self.read_all();
        let scale = self.shape.scale;
        let changed = |&logit: &f32| match self.shape.smoothing {
            None => f64::from(logit) * scale,
            Some(smoothing) => f64::from(smoothing.best) * scale + smoothing.bent(logit, scale),
        };
        self.read.logits[..n].iter().map(changed).collect()
    }
}
