//! Draws through the shipped components follow the distributions that they
//! should, and are independent of each other over positions, seeds, choices
//! and stages.
//!
//! The seeds were fixed before the first run, 0 to 199, each over 1,000
//! positions, so nothing here is a matter of luck: a test that passes passes
//! always. Every cell of a chi-square test expects 50 draws or more.
#![allow(clippy::unwrap_used)]

mod support;

use std::{sync::Arc, time::Duration};

use rayon::prelude::*;
use serde_json::{Value, json};
use sluice::{
    engine::{Chain, TokenId},
    plugin::{Choices, Limits, STACK_BYTES, SequenceInfo, StageRef, Vocabulary},
};
use support::{Plugins, numbered_vocabulary, shipped, test_guest};

const SEEDS: i64 = 200;
const POSITIONS: usize = 1000;
const LEAST_P: f64 = 1e-4;
const LEAST_EXPECTED: f64 = 50.0;

/// How likely a chi-square of at least `x` is with an even number of degrees
/// of freedom: e^(−x/2) · Σ (x/2)ⁱ / i! over i below half of them (Abramowitz
/// and Stegun, 26.4.5).
fn upper_tail(x: f64, degrees: usize) -> f64 {
    assert!(degrees > 0 && degrees.is_multiple_of(2));
    let half = x / 2.0;
    let mut term = 1.0;
    let mut sum = 0.0;
    for i in 0..degrees / 2 {
        sum += term;
        term *= half / (i + 1) as f64;
    }
    (-half).exp() * sum
}

/// Values of `scipy.stats.chi2.sf`.
#[test]
fn the_tail_is_that_of_the_tables() {
    for (x, degrees, expected) in [
        (5.991_464_547, 2, 0.05),
        (18.307_038_05, 10, 0.05),
        (63.170_128_3, 24, 2.249_234e-5),
        (204.0, 124, 7.996_578e-6),
    ] {
        let found = upper_tail(x, degrees);
        assert!((found / expected - 1.0).abs() < 1e-3, "{x}: {found}");
    }
}

/// Observed counts and expected shares. Merges rare cells with the one after
/// them, and one more pair if the degrees of freedom are odd.
fn chi_square(counts: &[u64], shares: &[f64]) -> f64 {
    assert_eq!(counts.len(), shares.len());
    let n: u64 = counts.iter().sum();
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    let mut cells: Vec<(f64, f64)> = Vec::new();
    let mut open = (0.0, 0.0);
    for (&count, share) in counts.iter().zip(shares) {
        open = (open.0 + count as f64, open.1 + share * n as f64);
        if open.1 >= LEAST_EXPECTED {
            cells.push(std::mem::take(&mut open));
        }
    }
    let last = cells.last_mut().unwrap();
    *last = (last.0 + open.0, last.1 + open.1);
    if cells.len().is_multiple_of(2) {
        let (count, expected) = cells.pop().unwrap();
        let last = cells.last_mut().unwrap();
        *last = (last.0 + count, last.1 + expected);
    }
    let terms = cells
        .iter()
        .map(|(count, expected)| (count - expected).powi(2) / expected);
    upper_tail(terms.sum(), cells.len() - 1)
}

#[track_caller]
fn assert_follows(counts: &[u64], shares: &[f64]) {
    let p = chi_square(counts, shares);
    println!("p = {p:.4}");
    assert!(p > LEAST_P, "p is {p}: {counts:?}");
}

/// A test that rejects nothing would prove nothing: two tokens in a hundred
/// moved from one cell to another.
#[test]
fn a_small_bias_is_found() {
    let even = [0.2; 5];
    assert!(chi_square(&[40_100, 39_900, 40_050, 39_950, 40_000], &even) > 0.5);
    assert!(chi_square(&[41_000, 39_000, 40_000, 40_000, 40_000], &even) < LEAST_P);
}

struct Setting {
    plugins: Plugins,
    vocabulary: Arc<Vocabulary>,
}

impl Setting {
    fn new(width: usize) -> Self {
        // A deadline that a busy machine keeps.
        let limits = Limits {
            call: Duration::from_secs(5),
            ..Limits::default()
        };
        let components = [shipped("sampler"), test_guest("dice")];
        Self {
            plugins: Plugins::with_limits(limits, &components),
            vocabulary: numbered_vocabulary(width as u32, vec![]),
        }
    }

    fn stage(&self, name: &str, params: Value) -> StageRef {
        self.plugins.stage(name, params).unwrap()
    }

    fn open(&self, stages: &[StageRef], seed: i64, n_choices: u32) -> Vec<Box<dyn Chain>> {
        let info = SequenceInfo {
            prompt: vec![0],
            max_tokens: POSITIONS as u32,
            end_ids: vec![],
        };
        let choices = Choices {
            n: n_choices,
            seed,
            explain: false,
        };
        let runtime = &self.plugins.runtime;
        let chains = runtime.open(&self.vocabulary, stages, &info, choices);
        let boxed = |chain| Box::new(chain) as Box<dyn Chain>;
        chains.unwrap().into_iter().map(boxed).collect()
    }

    /// The tokens of each seed and choice, `[seed][choice][position]`, drawn
    /// from the same row at every position.
    fn draws(
        &self,
        stages: &[StageRef],
        row: &[f32],
        n_choices: u32,
        positions: usize,
    ) -> Vec<Vec<Vec<TokenId>>> {
        let threads = rayon::ThreadPoolBuilder::new().stack_size(STACK_BYTES);
        threads.build().unwrap().install(|| {
            let seeds = (0..SEEDS).into_par_iter().map(|seed| {
                let chains = self.open(stages, seed, n_choices);
                let each = chains
                    .into_iter()
                    .map(|mut chain| drawn(&mut *chain, row, positions));
                each.collect()
            });
            seeds.collect()
        })
    }

    /// One choice of a sampler with these parameters.
    fn sampled(&self, params: Value, row: &[f32]) -> Vec<Vec<TokenId>> {
        let stages = [self.stage("sampler", params)];
        let draws = self.draws(&stages, row, 1, POSITIONS);
        draws
            .into_iter()
            .map(|mut choices| choices.remove(0))
            .collect()
    }
}

fn drawn(chain: &mut dyn Chain, row: &[f32], positions: usize) -> Vec<TokenId> {
    let mut scratch = row.to_vec();
    let mut tokens: Vec<TokenId> = Vec::with_capacity(positions);
    for _ in 0..positions {
        let newest = &tokens[tokens.len().saturating_sub(1)..];
        chain.plan(newest).unwrap();
        scratch.copy_from_slice(row);
        tokens.push(chain.finish_values(&mut scratch).unwrap());
    }
    tokens
}

fn counts(cells: impl IntoIterator<Item = usize>, n: usize) -> Vec<u64> {
    let mut counts = vec![0; n];
    for cell in cells {
        counts[cell] += 1;
    }
    counts
}

fn token_counts(draws: &[Vec<TokenId>], width: usize) -> Vec<u64> {
    counts(draws.iter().flatten().map(|&id| id as usize), width)
}

/// A row of these weights in per cent, and of a banned token at the end.
const WEIGHTS: [f64; 11] = [8.0, 40.0, 3.0, 20.0, 4.4, 10.0, 5.0, 6.0, 2.0, 1.0, 0.6];

fn weighted_row() -> Vec<f32> {
    let logits = WEIGHTS.iter().map(|weight| weight.ln() as f32);
    logits.chain([f32::NEG_INFINITY]).collect()
}

/// What is left of the weights, as shares, the banned token's last.
fn shares(keep: impl Fn(f64) -> bool, change: impl Fn(f64) -> f64) -> Vec<f64> {
    let left = WEIGHTS.map(|weight| if keep(weight) { change(weight) } else { 0.0 });
    let total: f64 = left.iter().sum();
    left.iter()
        .map(|weight| weight / total)
        .chain([0.0])
        .collect()
}

#[test]
fn draws_follow_known_distributions() {
    let row = weighted_row();
    let setting = Setting::new(row.len());
    for (params, expected) in [
        (json!({}), shares(|_| true, |w| w)),
        (json!({"temperature": 2}), shares(|_| true, f64::sqrt)),
        (json!({"temperature": 0.5}), shares(|_| true, |w| w * w)),
        (json!({"top_k": 4}), shares(|w| w >= 8.0, |w| w)),
        // Before the fifth best lie 78 of 100, before the sixth 84.
        (json!({"top_p": 0.8}), shares(|w| w >= 6.0, |w| w)),
        (json!({"min_p": 0.12}), shares(|w| w >= 5.0, |w| w)),
        // Of the square roots, the best three are 6.3, 4.5 and 3.2 of 28.6.
        (
            json!({"temperature": 2, "top_p": 0.45}),
            shares(|w| w >= 10.0, f64::sqrt),
        ),
    ] {
        println!("{params}");
        let counts = token_counts(&setting.sampled(params, &row), row.len());
        assert_eq!(counts.iter().sum::<u64>(), 200_000);
        for (count, share) in counts.iter().zip(&expected) {
            assert!(*share > 0.0 || *count == 0, "a dropped token was drawn");
        }
        assert_follows(&counts, &expected);
    }
}

/// Five tokens, equally likely: 25 pairs.
#[test]
fn neighbours_are_independent() {
    const SIDES: usize = 5;
    let setting = Setting::new(SIDES);
    let stages = [setting.stage("sampler", json!({}))];
    let draws = setting.draws(&stages, &[0.0; SIDES], 3, POSITIONS);
    let even = [1.0 / (SIDES * SIDES) as f64; SIDES * SIDES];
    let pair = |(a, b): (&TokenId, &TokenId)| *a as usize * SIDES + *b as usize;

    // Over positions; disjoint pairs, which are independent of each other.
    for offset in [0, 1] {
        let pairs = draws.iter().flat_map(|choices| {
            let pairs = choices[0][offset..].chunks_exact(2);
            pairs.map(|both| pair((&both[0], &both[1])))
        });
        assert_follows(&counts(pairs, SIDES * SIDES), &even);
    }
    let lag_1: f64 = draws.iter().map(|choices| covariance(&choices[0])).sum();
    let n = (SEEDS as usize * (POSITIONS - 1)) as f64;
    // The variance of 0 to 4 is 2. A correlation of nothing strays by 1/√n.
    let correlation = lag_1 / n / 2.0;
    println!("lag-1 correlation {correlation:.5}");
    assert!(correlation.abs() < 4.0 / n.sqrt(), "{correlation}");

    // Over choices of one request, and over seeds next to each other.
    for (a, b) in [(0, 1), (1, 2), (0, 2)] {
        let pairs = draws
            .iter()
            .flat_map(|choices| choices[a].iter().zip(&choices[b]));
        assert_follows(&counts(pairs.map(pair), SIDES * SIDES), &even);
    }
    let pairs = draws
        .chunks_exact(2)
        .flat_map(|seeds| seeds[0][0].iter().zip(&seeds[1][0]));
    assert_follows(&counts(pairs.map(pair), SIDES * SIDES), &even);
}

fn covariance(tokens: &[TokenId]) -> f64 {
    let pairs = tokens.windows(2);
    pairs
        .map(|pair| (f64::from(pair[0]) - 2.0) * (f64::from(pair[1]) - 2.0))
        .sum()
}

/// Two dice, of the same plugin, and the sampler: 125 triples.
#[test]
fn stages_are_independent() {
    const SIDES: usize = 5;
    const CELLS: usize = SIDES * SIDES * SIDES;
    let setting = Setting::new(CELLS);
    let stages = [
        setting.stage("dice", json!({"sides": SIDES, "place": 0})),
        setting.stage("dice", json!({"sides": SIDES, "place": 1})),
        setting.stage("sampler", json!({})),
    ];
    let draws = setting.draws(&stages, &[0.0; CELLS], 1, POSITIONS);
    let tokens = draws.iter().flatten().flatten().map(|&id| id as usize);
    assert_follows(&counts(tokens, CELLS), &[1.0 / CELLS as f64; CELLS]);
}

/// Best tokens that stand out as those of a language model do (p ∝ 1/rank),
/// scattered over a whole vocabulary, in ten parts of about the same mass.
#[test]
fn a_wide_row_is_drawn_from_by_mass() {
    const WIDTH: usize = 49_152;
    const PARTS: usize = 10;
    // 7 and the width have no factor in common.
    let rank_of = |id: usize| (7 * id + 11) % WIDTH;
    let weight = |rank: usize| 1.0 / (rank as f64 + 8.0);
    let row: Vec<f32> = (0..WIDTH)
        .map(|id| weight(rank_of(id)).ln() as f32)
        .collect();
    let total: f64 = (0..WIDTH).map(weight).sum();
    let mut part_of_rank = Vec::with_capacity(WIDTH);
    let mut shares = [0.0; PARTS];
    let mut before = 0.0;
    for rank in 0..WIDTH {
        let part = ((before / total * PARTS as f64) as usize).min(PARTS - 1);
        part_of_rank.push(part);
        shares[part] += weight(rank) / total;
        before += weight(rank);
    }
    // Half of the draws look thousands of tokens deep, so there are fewer.
    let setting = Setting::new(WIDTH);
    let stages = [setting.stage("sampler", json!({}))];
    let draws = setting.draws(&stages, &row, 1, 100);
    let parts = draws
        .iter()
        .flatten()
        .flatten()
        .map(|&id| part_of_rank[rank_of(id as usize)]);
    assert_follows(&counts(parts, PARTS), &shares);
}

/// A 0.5, B 0.3, C and D 0.1: above 0.2 lie A and B, so a firing drops A. Were
/// the firing and the draw one number, the shares would not be these.
#[test]
fn xtc_fires_at_its_probability() {
    let weights = [0.5_f64, 0.3, 0.1, 0.1];
    let row = weights.map(|weight| weight.ln() as f32);
    let setting = Setting::new(row.len());
    for probability in [0.1, 0.5, 0.9] {
        let params = json!({"xtc_probability": probability, "xtc_threshold": 0.2});
        let counts = token_counts(&setting.sampled(params, &row), row.len());
        let fired = [0.0, 0.6, 0.2, 0.2];
        let shares: Vec<f64> = weights
            .iter()
            .zip(fired)
            .map(|(without, with)| (1.0 - probability) * without + probability * with)
            .collect();
        assert_follows(&counts, &shares);
    }
    let never = json!({"xtc_probability": 0, "xtc_threshold": 0.2});
    let counts = token_counts(&setting.sampled(never, &row), row.len());
    assert_follows(&counts, &weights);
    let always = json!({"xtc_probability": 1, "xtc_threshold": 0.2});
    assert_eq!(
        token_counts(&setting.sampled(always, &row), row.len())[0],
        0
    );
}
