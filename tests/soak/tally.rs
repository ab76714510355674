//! What was seen: counts by what a client did and what came of it, and
//! whatever must not have happened.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

/// Failures that are shown; more only count.
const MOST_SHOWN: usize = 20;

#[derive(Default)]
pub struct Tally(RefCell<Inner>);

#[derive(Default)]
struct Inner {
    counts: BTreeMap<(&'static str, String), u64>,
    failures: Vec<String>,
    n_failures: u64,
}

impl Tally {
    pub fn count(&self, action: &'static str, outcome: impl Into<String>) {
        let mut inner = self.0.borrow_mut();
        *inner.counts.entry((action, outcome.into())).or_default() += 1;
    }

    pub fn fail(&self, action: &'static str, what: impl fmt::Display) {
        self.count(action, "FAILURE");
        let mut inner = self.0.borrow_mut();
        inner.n_failures += 1;
        if inner.failures.len() < MOST_SHOWN {
            println!("{action}: {what}");
            inner.failures.push(format!("{action}: {what}"));
        }
    }

    pub fn n_failures(&self) -> u64 {
        self.0.borrow().n_failures
    }

    /// How often an action had an outcome that starts so.
    pub fn n(&self, action: &str, outcome: &str) -> u64 {
        let inner = self.0.borrow();
        let counts = inner.counts.iter();
        counts
            .filter(|((of, came), _)| *of == action && came.starts_with(outcome))
            .map(|(_, n)| n)
            .sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let inner = self.0.borrow();
        let total: u64 = inner.counts.values().sum();
        writeln!(formatter, "{total} in all, {} failures", inner.n_failures)?;
        let mut last = "";
        for ((action, outcome), n) in &inner.counts {
            if *action != last {
                write!(formatter, "\n{action:>16}:")?;
                last = action;
            }
            write!(formatter, "  {outcome} {n}")?;
        }
        writeln!(formatter)
    }
}
