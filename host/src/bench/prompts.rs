//! How long prompts take to their first token.

use std::fmt::Write;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::Value;

use super::engine::Bench;
use super::report::Spread;
use super::{Arm, BenchArgs, BenchError, rows};

/// The figures of one length and chain.
#[derive(Debug, Serialize)]
struct Figures {
    prompt_tokens: u32,
    chain: &'static str,
    /// From submission to the first token.
    first_token_s: Spread,
    /// Those of the prompt by the median.
    tokens_per_second: f64,
}

/// One prompt at a time, the arms in turn.
pub(super) fn measure(bench: &Bench, args: &BenchArgs) -> Result<(Value, String), BenchError> {
    let cases: Vec<(u32, &'static Arm)> = args
        .prefill
        .iter()
        .flat_map(|&length| args.chain.iter().map(move |&arm| (length, arm)))
        .collect();
    let mut times: Vec<Vec<f64>> = cases.iter().map(|_| Vec::new()).collect();
    let bar = ProgressBar::new(cases.len() as u64 * u64::from(args.rounds + 1));
    // The first round warms up and is not counted.
    for round in 0..=args.rounds {
        for (&(length, arm), times) in cases.iter().zip(&mut times) {
            let started = Instant::now();
            bench.start(arm, 1, 0, length, 1)?.next()?;
            if round > 0 {
                times.push(started.elapsed().as_secs_f64());
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let figures: Vec<_> = cases
        .iter()
        .zip(times)
        .filter_map(|(&(prompt_tokens, arm), times)| {
            let first_token_s = Spread::of(times)?;
            Some(Figures {
                prompt_tokens,
                chain: arm.name,
                first_token_s,
                tokens_per_second: f64::from(prompt_tokens) / first_token_s.median,
            })
        })
        .collect();
    Ok((rows(&figures), table(&figures)))
}

/// A table for people.
fn table(figures: &[Figures]) -> String {
    let mut table =
        String::from("| prompt | chain | s to the first token | tokens/s |\n|---|---|---|---|\n");
    for f in figures {
        let _ = writeln!(
            table,
            "| {} | {} | {:.3} | {:.0} |",
            f.prompt_tokens, f.chain, f.first_token_s, f.tokens_per_second
        );
    }
    table
}
