//! `sluice bench` with one arm more: the logic of the arm `default` as native
//! code, so that what Wasm and the boundary cost shows in whole steps. It fails
//! if the two choose different tokens.
//!
//! ```sh
//! cargo run --release -p sluice --example native_chain -- bench --chain none,default
//! ```
//!
//! The penalties are those of the plugin, the sampler is the SDK's pipeline over
//! the kernels' passes over a row. Nothing of this is in the shipped program.

use std::borrow::Cow;
use std::process::ExitCode;

use sluice::bench::{self, Arm, NativeSequence};
use sluice::config::{Cli, Command};
use sluice::engine::{Chain, Fault, LogitsRow, Plan, TokenId};
use sluice::plugin::compile_child;
use sluice_contract::chance::Chance;
use sluice_kernels::row::Scanned;
use sluice_plugin::logits::Candidates;
use sluice_plugin::ranking::Row;
use sluice_plugin::sampling::{Params, Pipeline};

#[path = "../../plugins/penalties/src/frequency.rs"]
mod frequency;
#[path = "../../plugins/penalties/src/presence.rs"]
mod presence;
#[path = "../../plugins/penalties/src/repetition.rs"]
mod repetition;

static NATIVE: Arm = Arm::native(
    "native",
    "the logic of `default` as native code",
    "default",
    |sequence| match Native::new(sequence) {
        Ok(chain) => Box::new(chain),
        Err(message) => Box::new(Broken(message)),
    },
);

fn main() -> ExitCode {
    match Cli::read() {
        Command::Bench { mut args, model } => {
            args.chain.push(&NATIVE);
            match bench::run(&model, &args) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("error: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        // The shipped plugins are compiled by whoever uses them first.
        Command::PluginCompile(task) => compile_child(&task),
        _ => {
            eprintln!("error: this program has the command `bench` alone");
            ExitCode::FAILURE
        }
    }
}

/// The stages of `default`, with its parameters.
struct Native {
    repetition: repetition::Repetition,
    frequency: frequency::Frequency,
    presence: presence::Presence,
    pipeline: Pipeline,
    chance: Chance,
}

impl Native {
    fn new(sequence: &NativeSequence<'_>) -> Result<Self, String> {
        let params = r#"{"temperature": 0.8, "top_k": 40, "top_p": 0.95}"#;
        let params: Params = serde_json::from_str(params).map_err(|error| error.to_string())?;
        Ok(Self {
            repetition: repetition::Repetition::new(1.1, 0, sequence.prompt),
            frequency: frequency::Frequency::new(0.2, 0),
            presence: presence::Presence::new(0.5, 0),
            pipeline: Pipeline::new(params, &[], sequence.vocabulary_size)?,
            chance: Chance {
                seed: sequence.seed,
                position: 0,
                choice: 0,
                lane: 0,
            },
        })
    }
}

impl Chain for Native {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.chance.position += accepted.len() as u32;
        for &id in accepted {
            self.repetition.accept(id);
            self.frequency.accept(id);
            self.presence.accept(id);
        }
        Ok(Plan::Sample)
    }

    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        row.change_at([100, 200], |row| {
            row[100] -= 1.5;
            row[200] += 0.5;
        });
        let (ids, divisor) = (self.repetition.ids(), self.repetition.divisor());
        row.change_at(ids.iter().copied(), |row| {
            for &id in ids {
                let logit = &mut row[id as usize];
                if *logit > 0.0 {
                    *logit /= divisor;
                } else {
                    *logit *= divisor;
                }
            }
        });
        for (ids, values) in [self.frequency.additions(), self.presence.additions()] {
            row.change_at(ids.iter().copied(), |row| {
                for (&id, value) in ids.iter().zip(values) {
                    row[id as usize] += value;
                }
            });
        }
        let row = row.scan().map_err(|bad| fault(&bad.to_string()))?;
        let uniform = |draw| (self.chance.bits(draw) >> 11) as f64 / (1_u64 << 53) as f64;
        let token = self.pipeline.choose(NativeRow(row), &uniform);
        token.ok_or_else(|| fault("every token is banned"))
    }
}

/// A chain whose parameters are wrong.
struct Broken(String);

impl Chain for Broken {
    fn plan(&mut self, _accepted: &[TokenId]) -> Result<Plan, Fault> {
        Err(fault(&self.0))
    }

    fn finish(&mut self, _row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        Err(fault(&self.0))
    }
}

fn fault(message: &str) -> Fault {
    Fault {
        stage: "native".into(),
        kind: "error",
        message: message.into(),
    }
}

/// A row read by the passes that the server gives a component.
#[derive(Clone, Copy)]
struct NativeRow<'a>(Scanned<'a>);

impl Row for NativeRow<'_> {
    fn top(&self, k: u32) -> Candidates {
        let (mut ids, mut logits) = (Vec::new(), Vec::new());
        self.0.top_k(k as usize, &mut ids, &mut logits);
        Candidates { ids, logits }
    }

    fn log_sum_exp(&self, temperature: f32) -> f64 {
        self.0.log_sum_exp(temperature)
    }

    fn whole(&self) -> Cow<'_, [f32]> {
        self.0.values().into()
    }
}
