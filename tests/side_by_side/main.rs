//! Our stages beside other people's: mlx-lm, transformers and llama.cpp on
//! 1,000 random rows each, at two widths.
//!
//! The packages ran once; `record_*.py` wrote what they made of the rows of
//! `rows.py`. Here the same rows go through our components (bias, bans,
//! penalties, dry) and through the library that the samplers are made of. Same
//! kept tokens, logits within 1e-5. Where we differ on purpose: `README.md`.
#![allow(clippy::unwrap_used, unreachable_pub)]
// Equal infinities have no difference.
#![allow(clippy::float_cmp)]

mod differences;
mod fixture;
mod ours;
mod rows;
mod steps;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Mutex;

use fixture::Op;
use ours::Ours;
use rayon::prelude::*;
use rows::{ROWS, Row, WIDTHS};

/// Runs guests, so its threads have the stack that those need.
fn threads() -> rayon::ThreadPool {
    let threads = rayon::ThreadPoolBuilder::new().stack_size(sluice::plugin::STACK_BYTES);
    threads.build().unwrap()
}

/// How many rows of each op are as recorded; those that are not fail the test.
fn compare(package: &str, file: &[u8], n_ops: usize) {
    let ops = fixture::read(file);
    assert_eq!(ops.len(), n_ops);
    let ours = Ours::new();
    let failures = Mutex::new(Vec::new());
    threads().install(|| {
        for width in WIDTHS {
            let ops: Vec<&Op> = ops.iter().filter(|op| op.width == width).collect();
            (0..ROWS).into_par_iter().for_each(|number| {
                let row = Row::new(number, width);
                for op in &ops {
                    let outcome = ours.logits(package, op, &row);
                    let outcome = outcome.and_then(|l| op.records[number].check(&row, &l));
                    if let Err(why) = outcome {
                        let params = op.params(number);
                        let which = format!("{} V={width} row {number} {params:?}", op.name);
                        failures.lock().unwrap().push(format!("{which}: {why}"));
                    }
                }
            });
        }
    });
    for op in &ops {
        println!(
            "{package} {} V={}: {ROWS} rows, the package rounds in {}",
            op.name,
            op.width,
            op.rounded.len()
        );
    }
    let failures = failures.into_inner().unwrap();
    let shown = &failures[..failures.len().min(20)];
    assert!(
        failures.is_empty(),
        "{} differ, such as {shown:#?}",
        failures.len()
    );
}

#[test]
fn mlx_lm() {
    compare("mlx-lm", include_bytes!("mlx-lm.bin"), 20);
}

#[test]
fn transformers() {
    compare("transformers", include_bytes!("transformers.bin"), 26);
}

#[test]
fn llama_cpp() {
    compare("llama.cpp", include_bytes!("llama.cpp.bin"), 26);
}
