//! How long it takes to open a chain: an instance for each of its stages.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::engine::Bench;
use super::{Arm, BenchArgs, BenchError, quantile, rows};

/// Chains that stay open meanwhile, as in a server.
const OPEN: usize = 32;
/// Those opened first are not counted.
const WARM_UP: usize = 64;

/// The figures of one chain.
#[derive(Debug, Serialize)]
struct Figures {
    chain: &'static str,
    n_instances: usize,
    /// Microseconds to open the chain.
    open_us_p50: f64,
    open_us_p99: f64,
    /// The same by the number of its instances.
    instance_us_p50: f64,
    instance_us_p99: f64,
}

/// Opens each chain so many times, in turn.
pub(super) fn measure(
    bench: &Bench,
    args: &BenchArgs,
    times: u32,
) -> Result<(Value, String), BenchError> {
    let arms: Vec<&'static Arm> = args
        .chain
        .iter()
        .copied()
        .filter(|arm| !arm.is_native())
        .collect();
    let mut opened: Vec<Vec<Duration>> = arms.iter().map(|_| Vec::new()).collect();
    let mut open = VecDeque::new();
    for n in 0..times as usize + WARM_UP {
        for (arm, opened) in arms.iter().zip(&mut opened) {
            let started = Instant::now();
            let chain = bench.open(arm, 0, &[1], 64)?;
            if n >= WARM_UP {
                opened.push(started.elapsed());
            }
            open.push_back(chain);
            if open.len() > OPEN {
                open.pop_front();
            }
        }
    }
    let figures: Vec<_> = arms
        .iter()
        .zip(opened)
        .map(|(arm, mut opened)| {
            opened.sort_unstable();
            let n_instances = arm.stages(0)?.len();
            let [p50, p99] = [0.5, 0.99].map(|share| 1e3 * quantile(&opened, share));
            Ok(Figures {
                chain: arm.name,
                n_instances,
                open_us_p50: p50,
                open_us_p99: p99,
                instance_us_p50: p50 / n_instances as f64,
                instance_us_p99: p99 / n_instances as f64,
            })
        })
        .collect::<Result<_, BenchError>>()?;
    Ok((rows(&figures), table(&figures)))
}

/// A table for people.
fn table(figures: &[Figures]) -> String {
    let mut table = String::from(
        "| chain | instances | µs to open it: 50, 99 % | µs for each instance: 50, 99 % |\n\
         |---|---|---|---|\n",
    );
    for f in figures {
        let _ = writeln!(
            table,
            "| {} | {} | {:.0}, {:.0} | {:.0}, {:.0} |",
            f.chain,
            f.n_instances,
            f.open_us_p50,
            f.open_us_p99,
            f.instance_us_p50,
            f.instance_us_p99,
        );
    }
    table
}
