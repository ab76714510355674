//! The default model's answers, and small models of random weights.
#![allow(clippy::unwrap_used)]

mod answer;
mod blocks;
mod company;
mod families;
mod gguf;
mod loading;
mod quantised;
mod small;

use std::path::PathBuf;

use etcetera::BaseStrategy;

use super::{Backend, Checkpoint, default_model, load};
use crate::engine::{Model, Row};

/// The chat "What is the capital of France?" as the default model's template
/// has it, encoded by Hugging Face's tokenizers.
const PROMPT: [u32; 37] = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407,
    19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531,
    198,
];

fn default_model_path() -> PathBuf {
    let cache = etcetera::choose_base_strategy()
        .unwrap()
        .cache_dir()
        .join("sluice");
    default_model::fetch(&cache, &mut |_| ()).unwrap()
}

fn open(path: &std::path::Path, backend: Backend) -> Box<dyn Model> {
    load(&Checkpoint::open(path).unwrap(), backend, &mut |_| ()).unwrap()
}

/// Rows of one slot from `start` on; only the last wants logits.
fn rows(slot: u32, start: usize, tokens: &[u32]) -> Vec<Row> {
    let last = tokens.len() - 1;
    let row = |(index, &token): (usize, &u32)| Row {
        token,
        position: (start + index) as u32,
        slot,
        wants_logits: index == last,
    };
    tokens.iter().enumerate().map(row).collect()
}

/// The rows with logits wanted of each.
fn wanting(mut rows: Vec<Row>) -> Vec<Row> {
    for row in &mut rows {
        row.wants_logits = true;
    }
    rows
}

fn greedy(row: &[f32]) -> u32 {
    let best = row
        .iter()
        .enumerate()
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .unwrap();
    best.0 as u32
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}
