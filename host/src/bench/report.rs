//! From rounds to figures: medians, and ratios of arms within a round.

use std::fmt::{self, Write};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::arms::RATIOS;
use super::quantile;
use super::rounds::{Case, Round};

/// The figures of one case.
#[derive(Debug, Serialize)]
struct Figures {
    batch: usize,
    prompt_tokens: u32,
    chain: &'static str,
    /// Median wall time of a step, from token to token.
    step_ms_median: f64,
    /// The step that one in ten is faster than.
    step_ms_p10: f64,
    /// The step that one in ten is slower than.
    step_ms_p90: f64,
    /// The medians of the rounds.
    step_ms_rounds: Vec<f64>,
    /// Tokens of all rows per second, from the median.
    tokens_per_second: f64,
    /// Part of the steps' time in which the engine waited for chains.
    chain_share: f64,
    /// That time in a step, on average.
    chain_us: f64,
    /// The step by that of the arm `none` in the same round, where that runs
    /// with the same batch and prompt.
    by_none: Option<Spread>,
}

/// A figure that each round has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Spread {
    /// None where there is no value.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        let upper = values[values.len() / 2];
        let lower = values[(values.len() - 1) / 2];
        Some(Self {
            median: f64::midpoint(lower, upper),
            least,
            most,
        })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(3);
        write!(
            f,
            "{:.digits$} ({:.digits$} … {:.digits$})",
            self.median, self.least, self.most
        )
    }
}

/// An arm's step by the mean of others'.
#[derive(Debug, Serialize)]
struct Ratio {
    batch: usize,
    prompt_tokens: u32,
    chain: &'static str,
    by: &'static [&'static str],
    #[serde(flatten)]
    spread: Spread,
}

/// The figures as JSON and as a table. `reads` are GB/s of plain reads.
pub(super) fn of_rounds(cases: &[Case], rounds: &[Vec<Round>], reads: Vec<f64>) -> (Value, String) {
    let medians: Vec<Vec<f64>> = rounds
        .iter()
        .map(|rounds| rounds.iter().map(median_ms).collect())
        .collect();
    let all = cases.iter().zip(rounds).zip(&medians);
    let figures: Vec<_> = all
        .map(|((case, rounds), medians_of_case)| {
            let none = find(cases, &medians, *case, "none");
            figures(*case, rounds, medians_of_case, none)
        })
        .collect();
    let ratios = ratios(cases, &medians);
    let read = Spread::of(reads);
    let json = json!({"rows": figures, "ratios": ratios, "read_gb_per_second": read});
    (json, table(&figures, &ratios, read))
}

fn median_ms(round: &Round) -> f64 {
    let mut steps = round.steps.clone();
    steps.sort_unstable();
    quantile(&steps, 0.5)
}

/// The rounds of an arm with the batch and prompt of a case.
fn find<'a>(
    cases: &[Case],
    medians: &'a [Vec<f64>],
    like: Case,
    name: &str,
) -> Option<&'a Vec<f64>> {
    let at = cases.iter().position(|case| {
        case.arm.name == name
            && (case.batch, case.prompt_tokens) == (like.batch, like.prompt_tokens)
    });
    at.and_then(|at| medians.get(at))
}

fn figures(case: Case, rounds: &[Round], medians: &[f64], none: Option<&Vec<f64>>) -> Figures {
    let mut steps: Vec<Duration> = rounds.iter().flat_map(|r| r.steps.clone()).collect();
    steps.sort_unstable();
    let at = |share: f64| quantile(&steps, share);
    let seconds = |of: fn(&Round) -> Duration| -> f64 {
        rounds.iter().map(|round| of(round).as_secs_f64()).sum()
    };
    let chain = seconds(|round| round.chain);
    let n_counted: u64 = rounds.iter().map(|round| round.n_counted).sum();
    Figures {
        batch: case.batch,
        prompt_tokens: case.prompt_tokens,
        chain: case.arm.name,
        step_ms_median: at(0.5),
        step_ms_p10: at(0.1),
        step_ms_p90: at(0.9),
        step_ms_rounds: medians.to_vec(),
        tokens_per_second: case.batch as f64 * 1e3 / at(0.5),
        chain_share: chain / seconds(|round| round.counted),
        chain_us: chain * 1e6 / n_counted as f64,
        by_none: none.and_then(|none| Spread::of(by(medians, &[none]))),
    }
}

/// Each round's value by the mean of others' in it.
fn by(values: &[f64], others: &[&Vec<f64>]) -> Vec<f64> {
    let of_round = |(round, value): (usize, &f64)| {
        let others: Option<Vec<f64>> = others.iter().map(|o| o.get(round).copied()).collect();
        let others = others?;
        Some(value * others.len() as f64 / others.iter().sum::<f64>())
    };
    values.iter().enumerate().filter_map(of_round).collect()
}

/// The ratios whose arms have all run.
fn ratios(cases: &[Case], medians: &[Vec<f64>]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for (case, of_case) in cases.iter().zip(medians) {
        for (_, others) in RATIOS.iter().filter(|(name, _)| *name == case.arm.name) {
            let found: Option<Vec<_>> = others
                .iter()
                .map(|name| find(cases, medians, *case, name))
                .collect();
            let spread = found.and_then(|found| Spread::of(by(of_case, &found)));
            ratios.extend(spread.map(|spread| Ratio {
                batch: case.batch,
                prompt_tokens: case.prompt_tokens,
                chain: case.arm.name,
                by: others,
                spread,
            }));
        }
    }
    ratios
}

/// A table for people.
fn table(figures: &[Figures], ratios: &[Ratio], read: Option<Spread>) -> String {
    let mut table = String::from(
        "| batch | prompt | chain | ms per step | 10 % … 90 % | tokens/s | by `none` | chain's share | chain, µs per step |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for f in figures {
        let by_none = f
            .by_none
            .map_or_else(|| "–".to_owned(), |spread| spread.to_string());
        let _ = writeln!(
            table,
            "| {} | {} | {} | {:.2} | {:.2} … {:.2} | {:.0} | {by_none} | {:.2} % | {:.0} |",
            f.batch,
            f.prompt_tokens,
            f.chain,
            f.step_ms_median,
            f.step_ms_p10,
            f.step_ms_p90,
            f.tokens_per_second,
            f.chain_share * 100.0,
            f.chain_us,
        );
    }
    for ratio in ratios {
        let by = match ratio.by {
            [one] => format!("`{one}`"),
            more => format!("the mean of `{}`", more.join("`, `")),
        };
        let _ = writeln!(
            table,
            "\nStep of `{}` by that of {by}, batch {}, prompt {}: {}.",
            ratio.chain, ratio.batch, ratio.prompt_tokens, ratio.spread
        );
    }
    if let Some(read) = read {
        let _ = writeln!(table, "\nA plain read of memory: {read:.1} GB/s.");
    }
    table
}
