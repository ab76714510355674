//! What the test components share.

use std::hint::black_box;

use serde::Deserialize;
use sluice_plugin::{
    Description, log,
    schemars::{self, JsonSchema},
};

/// The description of a test component.
pub fn description(name: &'static str) -> Description {
    Description {
        name,
        version: "0.1.0",
        summary: "For tests.",
    }
}

/// How a component is to misbehave, and when.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Misbehaviour {
    fault: String,
    /// In the first call with so many generated tokens; absent: in `open`.
    #[serde(default)]
    #[schemars(with = "usize")]
    after: Option<usize>,
    #[serde(skip)]
    generated: usize,
}

impl Misbehaviour {
    /// The fault to commit while opening.
    pub fn at_open(&self) -> Option<&str> {
        self.after.is_none().then_some(&self.fault)
    }

    /// The fault to commit in this call.
    pub fn at_call(&mut self, accepted: usize) -> Option<&str> {
        self.generated += accepted;
        self.after
            .is_some_and(|after| self.generated >= after)
            .then_some(&self.fault)
    }
}

/// Commits a fault that any kind of component can.
///
/// # Errors
/// For the fault `error`, and for one that nobody knows.
pub fn commit(fault: &str) -> Result<(), String> {
    match fault {
        "spin" => spin(),
        "trap" => std::process::abort(),
        "panic" => panic!("asked to panic"),
        "recurse" => {
            black_box(recurse(0));
        }
        "grow" => grow(),
        "flood" => flood(),
        "error" => return Err("asked to fail".into()),
        _ => return Err(format!("no fault is named `{fault}`")),
    }
    Ok(())
}

/// Never returns.
pub fn spin() {
    while black_box(true) {}
}

fn recurse(depth: u64) -> u64 {
    if black_box(true) {
        recurse(black_box(depth) + 1) + 1
    } else {
        depth
    }
}

/// Takes memory until there is no more.
fn grow() {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    while black_box(true) {
        blocks.push(black_box(Vec::with_capacity(16 << 20)));
    }
}

/// Logs without end.
fn flood() {
    let line = "x".repeat(64 << 10);
    while black_box(true) {
        log::write(log::Level::Info, &line);
    }
}
