//! The rows of `rows.py`, bit for bit.

use sluice::engine::TokenId;

pub const ROWS: usize = 1000;
pub const WIDTHS: [usize; 2] = [100, 49_152];
pub const PROBE_RANKS: [usize; 6] = [0, 1, 2, 5, 10, 20];

const SHAPES: usize = 6;
const BANS: usize = 4;
pub const PERIOD: usize = SHAPES * BANS;
const SPARED: [usize; 2] = [5, 9];

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// One of a row's streams of 32-bit numbers.
fn numbers(row: usize, stream: u64) -> impl Iterator<Item = i64> {
    let start = ((row as u64 + 1) << 40) + (stream << 32);
    (start..).map(|at| (mix(at) >> 32) as i64)
}

/// A logits row with its tokens from the best down, banned ones among them,
/// and a history.
pub struct Row {
    pub number: usize,
    pub logits: Vec<f32>,
    pub best: Vec<TokenId>,
    pub prompt: Vec<TokenId>,
    pub generated: Vec<TokenId>,
}

impl Row {
    pub fn new(number: usize, width: usize) -> Self {
        let best = ids_by_rank(number, width);
        let mut logits = vec![f32::NEG_INFINITY; width];
        for (&id, logit) in best.iter().zip(logits_by_rank(number, width)) {
            logits[id as usize] = logit;
        }
        let (prompt, generated) = history(number, width, &best);
        Self {
            number,
            logits,
            best,
            prompt,
            generated,
        }
    }

    /// Prompt and generated tokens.
    pub fn tokens(&self) -> Vec<TokenId> {
        [&self.prompt[..], &self.generated].concat()
    }
}

fn ids_by_rank(row: usize, width: usize) -> Vec<TokenId> {
    let width = width as i64;
    let mut line = numbers(row, 0).map(|n| n % width);
    let (slope, start) = (line.next().unwrap(), line.next().unwrap());
    (0..width)
        .map(|rank| (((30 * slope + 7) * rank + start) % width) as TokenId)
        .collect()
}

fn logits_by_rank(row: usize, width: usize) -> Vec<f32> {
    let (shape, bans) = (row % SHAPES, row / SHAPES % BANS);
    let limit = |rank: i64| match shape {
        0 => 786_432 / width as i64,
        2 => 524_288 / rank + 2,
        3 if rank % 2 == 1 => 1,
        3 => 60_000 / rank + 2,
        4 => 2_048 / rank + 2,
        _ => 144_180 / rank + 2,
    };
    let mut gaps: Vec<i64> = (1..width as i64)
        .zip(numbers(row, 1))
        .map(|(rank, noise)| 1 + noise % limit(rank))
        .collect();
    let mut top = numbers(row, 2).next().unwrap() % 2_621_440 - 1_310_720;
    let mut unit = 2f32.powi(-16);
    if shape == 4 {
        (top, unit) = (2_560_000, 2f32.powi(-8));
        for number in numbers(row, 3).take(4) {
            gaps[number as usize % 90] += 1_200_000;
        }
    }
    if shape == 5 {
        gaps[0] += 2_621_440;
    }
    let dice = numbers(row, 4).take(width);
    let mut sum = top;
    let gaps = std::iter::once(0).chain(gaps);
    gaps.zip(dice)
        .enumerate()
        .map(|(rank, (gap, die))| {
            sum -= gap;
            let banned = match bans {
                0 => false,
                1 => die % 16 == 0,
                2 => die % 2 == 0,
                _ => die % width as i64 >= 12,
            };
            if banned && !SPARED.contains(&rank) {
                f32::NEG_INFINITY
            } else {
                sum as f32 * unit
            }
        })
        .collect()
}

fn history(row: usize, width: usize, best: &[TokenId]) -> (Vec<TokenId>, Vec<TokenId>) {
    let lengths: Vec<usize> = numbers(row, 5).take(3).map(|n| n as usize).collect();
    let (n_prompt, n_generated) = (1 + lengths[0] % 40, lengths[1] % 80);
    let period = 3 + lengths[2] % 9;
    let mut tokens = Vec::new();
    let random = numbers(row, 6).zip(numbers(row, 7));
    for (i, (die, fresh)) in random.take(n_prompt + n_generated).enumerate() {
        tokens.push(if i >= period && die % 8 < 6 {
            tokens[i - period]
        } else {
            best[fresh as usize % if die % 8 == 7 { width } else { 24 }]
        });
    }
    let generated = tokens.split_off(n_prompt);
    (tokens, generated)
}
