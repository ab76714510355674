//! What the stages of a chain did: proof that they ran, and on request what
//! each of them changed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use sluice_kernels::row;

use super::loaded::Plugin;
use super::record::{Breaker, LogLine, Work};
use crate::engine::{Fault, TokenId};

/// Most raised and most dropped tokens that an explanation lists.
const MAX_LISTED: usize = 5;

/// What the stages of one choice have done so far. Its chain writes it, whoever
/// answers the request reads it.
pub struct Report {
    stages: Vec<Counted>,
    /// Absent unless asked for.
    explained: Option<Mutex<Vec<Explanation>>>,
}

/// A stage and its counters.
struct Counted {
    stage: String,
    plugin: Arc<Plugin>,
    calls: AtomicU64,
    edits: AtomicU64,
    skipped: AtomicU64,
    late: AtomicU64,
    nanoseconds: AtomicU64,
}

/// What one stage has done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// The plugin's name, and `name#k` at its k-th repetition.
    pub stage: String,
    pub plugin: String,
    pub version: String,
    pub digest: String,
    /// How often it was asked: once for each position that no stage before it
    /// decided.
    pub calls: u64,
    /// How many edits it made. One edit may touch many tokens.
    pub edits: u64,
    /// Positions at which it failed and was left out, as the request allowed.
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped: u64,
    /// Positions at which its plan outlasted the patience of the batch, as the
    /// request allowed.
    #[serde(skip_serializing_if = "is_zero")]
    pub late: u64,
    /// Time in its calls and in applying its edits.
    pub microseconds: u64,
}

/// What the stages did at one position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// Tokens generated before it.
    pub position: u32,
    pub stages: Vec<Effect>,
}

/// What one stage did at one position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    pub stage: String,
    #[serde(flatten)]
    pub did: Did,
    /// What it wrote to its log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<LogLine>,
}

/// What a stage did.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "did", rename_all = "snake_case")]
pub enum Did {
    /// Saw the row, and changed it.
    Changed(Change),
    /// Saw the row, and left it as it was.
    Unchanged,
    /// Decided the position: these tokens come next.
    Forced { tokens: Vec<TokenId> },
    /// Decided the position: the sequence ends.
    Stopped,
    /// Failed, and was left out.
    Skipped { fault: String },
    /// Chose the token.
    Chose(Choice),
}

/// How a stage changed the row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Tokens that it banned.
    pub banned: usize,
    /// Tokens whose logit it raised most, the largest raise first.
    pub raised: Vec<Moved>,
    /// Tokens whose logit it dropped most, bans excepted.
    pub dropped: Vec<Moved>,
    /// In nats, of the softmax over tokens that are not banned.
    pub entropy_before: f64,
    pub entropy_after: f64,
    /// Whether another token is the most likely one now.
    pub choice_changed: bool,
}

/// A logit that a stage moved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moved {
    pub token: TokenId,
    #[serde(serialize_with = "as_double")]
    pub from: f32,
    #[serde(serialize_with = "as_double")]
    pub to: f32,
}

/// Every number of an answer is written alike, in a stream and at once.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks so
fn as_double<S: serde::Serializer>(number: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(f64::from(*number))
}

/// What a sampler chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    pub token: TokenId,
    /// Whether it is another token than the most likely one.
    pub choice_changed: bool,
}

impl Report {
    pub(super) fn new(
        stages: impl IntoIterator<Item = (String, Arc<Plugin>)>,
        explain: bool,
    ) -> Self {
        let counted = |(stage, plugin)| Counted {
            stage,
            plugin,
            calls: AtomicU64::new(0),
            edits: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            late: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        };
        Self {
            stages: stages.into_iter().map(counted).collect(),
            explained: explain.then(Mutex::default),
        }
    }

    /// The stages in the order of the chain, each with what it did until now.
    pub fn stages(&self) -> Vec<StageReport> {
        let read = |counted: &Counted| StageReport {
            stage: counted.stage.clone(),
            plugin: counted.plugin.name.clone(),
            version: counted.plugin.version.to_string(),
            digest: counted.plugin.digest.clone(),
            calls: counted.calls.load(Relaxed),
            edits: counted.edits.load(Relaxed),
            skipped: counted.skipped.load(Relaxed),
            late: counted.late.load(Relaxed),
            microseconds: counted.nanoseconds.load(Relaxed) / 1_000,
        };
        self.stages.iter().map(read).collect()
    }

    /// Adds what the stages did to the figures of their plugins. To be called
    /// once, when the choice has ended.
    pub fn settle(&self) {
        for counted in &self.stages {
            counted.plugin.record.add(Work {
                calls: counted.calls.load(Relaxed),
                edits: counted.edits.load(Relaxed),
                time: Duration::from_nanos(counted.nanoseconds.load(Relaxed)),
            });
        }
    }

    /// The explanations since the last call, in order; none unless they were
    /// asked for.
    pub fn take_explanations(&self) -> Vec<Explanation> {
        let Some(explained) = &self.explained else {
            return Vec::new();
        };
        std::mem::take(&mut explained.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn explains(&self) -> bool {
        self.explained.is_some()
    }

    pub(super) fn called(&self, index: usize, time: Duration) {
        if let Some(stage) = self.stages.get(index) {
            stage.calls.fetch_add(1, Relaxed);
            self.worked(index, 0, time);
        }
    }

    pub(super) fn worked(&self, index: usize, edits: usize, time: Duration) {
        if let Some(stage) = self.stages.get(index) {
            stage.edits.fetch_add(edits as u64, Relaxed);
            stage.nanoseconds.fetch_add(time.as_nanos() as u64, Relaxed);
        }
    }

    pub(super) fn late(&self, index: usize) {
        if let Some(stage) = self.stages.get(index) {
            stage.late.fetch_add(1, Relaxed);
        }
    }

    /// The stage that has taken most time, and its name.
    pub(super) fn slowest(&self) -> (usize, String) {
        let stages = self.stages.iter().enumerate();
        let slowest = stages.max_by_key(|(_, stage)| stage.nanoseconds.load(Relaxed));
        slowest.map_or_else(Default::default, |(index, counted)| {
            (index, counted.stage.clone())
        })
    }

    /// Counts a fault of the stage against its plugin.
    pub(super) fn failed(&self, index: usize, fault: &Fault, breaker: Breaker, skipped: bool) {
        if let Some(stage) = self.stages.get(index) {
            stage.skipped.fetch_add(skipped.into(), Relaxed);
            stage.plugin.failed(fault, breaker);
        }
    }

    pub(super) fn explain(&self, explanation: Explanation) {
        if let Some(explained) = &self.explained {
            explained
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(explanation);
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Change {
    pub(super) fn is_nothing(&self) -> bool {
        self.banned == 0 && self.raised.is_empty() && self.dropped.is_empty()
    }

    /// What became of a row. Neither has a NaN.
    pub(super) fn between(before: &[f32], after: &[f32]) -> Self {
        let mut banned = 0;
        let (mut raised, mut dropped) = (Vec::new(), Vec::new());
        for (token, (&from, &to)) in (0..).zip(before.iter().zip(after)) {
            let moved = Moved { token, from, to };
            if to > from {
                raised.push(moved);
            } else if to == f32::NEG_INFINITY && from > to {
                banned += 1;
            } else if to < from {
                dropped.push(moved);
            }
        }
        Self {
            banned,
            raised: largest(raised),
            dropped: largest(dropped),
            entropy_before: entropy(before),
            entropy_after: entropy(after),
            choice_changed: row::argmax(before) != row::argmax(after),
        }
    }
}

/// The largest moves, equal ones by ascending id.
fn largest(mut moves: Vec<Moved>) -> Vec<Moved> {
    let size = |moved: &Moved| (moved.to - moved.from).abs();
    let order = |a: &Moved, b: &Moved| {
        let by_size = size(b).total_cmp(&size(a));
        by_size.then(a.token.cmp(&b.token))
    };
    if moves.len() > MAX_LISTED {
        // Whole rows move: only the largest are sorted.
        moves.select_nth_unstable_by(MAX_LISTED, order);
        moves.truncate(MAX_LISTED);
    }
    moves.sort_by(order);
    moves
}

/// −Σ p ln p in nats; 0 for a row with nothing left.
fn entropy(row: &[f32]) -> f64 {
    let Some(best) = row::argmax(row) else {
        return 0.0;
    };
    let best = f64::from(row[best as usize]);
    let (mut sum, mut weighted) = (0.0, 0.0);
    for &logit in row.iter().filter(|logit| **logit > f32::NEG_INFINITY) {
        let distance = f64::from(logit) - best;
        sum += distance.exp();
        weighted += distance * distance.exp();
    }
    sum.ln() - weighted / sum
}

#[cfg(test)]
// Every value here is exact.
#[allow(clippy::float_cmp)]
mod tests {
    use super::*;

    const BANNED: f32 = f32::NEG_INFINITY;

    #[test]
    fn a_change_counts_bans_and_lists_the_largest_moves() {
        let before = [0.0, 0.0, 0.0, 0.0, BANNED];
        let after = [1.0, BANNED, -2.0, 0.0, BANNED];
        let change = Change::between(&before, &after);
        assert_eq!(change.banned, 1);
        let moved = |token, from, to| Moved { token, from, to };
        assert_eq!(change.raised, [moved(0, 0.0, 1.0)]);
        assert_eq!(change.dropped, [moved(2, 0.0, -2.0)]);
        assert!(!change.choice_changed);
        // Four equal tokens: ln 4.
        assert!((change.entropy_before - 1.386_294).abs() < 1e-6);
        // Weights e, e⁻², 1: probabilities 0.705385, 0.035119, 0.259496.
        assert!(
            (change.entropy_after - 0.713_866).abs() < 1e-5,
            "{change:?}"
        );
    }

    #[test]
    fn the_choice_changes_with_the_best_token() {
        let change = Change::between(&[3.0, 2.0], &[1.0, 2.0]);
        assert!(change.choice_changed);
        let many: Vec<f32> = (0..20u8).map(f32::from).collect();
        let change = Change::between(&[0.0; 20], &many);
        let listed: Vec<_> = change.raised.iter().map(|moved| moved.token).collect();
        assert_eq!(listed, [19, 18, 17, 16, 15]);
    }

    #[test]
    fn one_token_left_has_no_entropy() {
        assert_eq!(entropy(&[BANNED, 5.0]), 0.0);
        assert_eq!(entropy(&[BANNED]), 0.0);
    }
}
