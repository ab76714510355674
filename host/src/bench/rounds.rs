//! Decode steps, the arms in turn.

use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::Value;

use super::engine::{Bench, DecodingRow};
use super::memory::Memory;
use super::{Arm, BenchArgs, BenchError, report};
use crate::engine::TokenId;

/// Steps of each arm in the round that warms up.
const WARM_UP: u32 = 4;

/// What is measured in each round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) batch: usize,
    pub(super) prompt_tokens: u32,
    pub(super) arm: &'static Arm,
}

/// What one round of a case took.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// From token to token, each.
    pub(super) steps: Vec<Duration>,
    /// What the engine counted meanwhile.
    pub(super) n_counted: u64,
    pub(super) counted: Duration,
    pub(super) chain: Duration,
    /// Those of the last row.
    pub(super) tokens: Vec<TokenId>,
}

/// Runs all rounds. Returns the figures and their table.
pub(super) fn measure(bench: &Bench, args: &BenchArgs) -> Result<(Value, String), BenchError> {
    let cases = cases(args);
    let memory = args.read_mib.map(Memory::new);
    let bar = ProgressBar::new(cases.len() as u64 * u64::from(args.rounds + 1));
    let warm_up = args.tokens.min(WARM_UP);
    let mut warm = Vec::new();
    for &case in &cases {
        warm.push(round(bench, case, warm_up)?);
        bar.inc(1);
    }
    let mut rounds: Vec<Vec<Round>> = cases.iter().map(|_| Vec::new()).collect();
    let mut reads = Vec::new();
    for n in 0..args.rounds {
        let mut order: Vec<_> = (0..cases.len()).collect();
        // There and back, so that a machine that slows down favours nobody.
        if n % 2 == 1 {
            order.reverse();
        }
        for index in order {
            rounds[index].push(round(bench, cases[index], args.tokens)?);
            bar.inc(1);
        }
        check_same(&cases, &rounds)?;
        reads.extend(memory.iter().map(Memory::read));
    }
    bar.finish_and_clear();
    Ok(report::of_rounds(&cases, &rounds, reads))
}

fn cases(args: &BenchArgs) -> Vec<Case> {
    let mut cases = Vec::new();
    for &batch in &args.batch {
        for &prompt_tokens in &args.prompt_tokens {
            cases.extend(args.chain.iter().map(|&arm| Case {
                batch,
                prompt_tokens,
                arm,
            }));
        }
    }
    cases
}

/// Lets a batch decode so many steps.
fn round(bench: &Bench, case: Case, n_steps: u32) -> Result<Round, BenchError> {
    let start = |row| bench.start(case.arm, case.batch, row, case.prompt_tokens, n_steps + 2);
    let mut rows = (0..case.batch)
        .map(start)
        .collect::<Result<Vec<DecodingRow>, _>>()?;
    let mut tokens = Vec::new();
    for row in &mut rows {
        tokens = vec![row.next()?];
    }
    // All rows decode now. The last one to join has the most tokens left.
    let Some(row) = rows.last_mut() else {
        return Ok(Round::default());
    };
    // One more, which is planned after the last step that counts.
    for _ in 0..=n_steps {
        tokens.push(row.next()?);
    }
    let (steps, before, after) = row.clock.steps(n_steps as usize).ok_or_else(|| {
        BenchError::Ended(format!(
            "not all of {n_steps} tokens were chosen by the chain"
        ))
    })?;
    Ok(Round {
        steps,
        n_counted: after.steps.saturating_sub(before.steps),
        counted: after.step.saturating_sub(before.step),
        chain: after.chain.saturating_sub(before.chain),
        tokens,
    })
}

/// Arms with the same logic have chosen the same tokens in the last round.
pub(super) fn check_same(cases: &[Case], rounds: &[Vec<Round>]) -> Result<(), BenchError> {
    let all = || cases.iter().zip(rounds);
    for (case, of_case) in all() {
        let Some(other) = case.arm.same_as else {
            continue;
        };
        let is_other = |found: &Case| {
            found.arm.name == other
                && (found.batch, found.prompt_tokens) == (case.batch, case.prompt_tokens)
        };
        let Some((_, of_other)) = all().find(|(found, _)| is_other(found)) else {
            continue;
        };
        let tokens = |rounds: &[Round]| rounds.last().map(|round| round.tokens.clone());
        if tokens(of_case) != tokens(of_other) {
            return Err(BenchError::Differ {
                arm: case.arm.name,
                other,
            });
        }
    }
    Ok(())
}
