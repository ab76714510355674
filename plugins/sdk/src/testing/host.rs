//! What stands behind the imports while the harness calls a plugin.

use std::{
    any::Any,
    cell::RefCell,
    mem,
    panic::{self, AssertUnwindSafe},
    rc::Rc,
};

use sluice_contract::{
    cases::Failure,
    chance::Chance,
    edits::Edits,
    phase::{Decision, Phase},
};

use super::setup::Vocabulary;
use crate::log::Level;

/// The host of one sequence.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) vocabulary: Rc<Vocabulary>,
    pub(super) edits: Edits,
    pub(super) decision: Option<Decision>,
    pub(super) row: Vec<f32>,
    pub(super) chance: Chance,
    pub(super) log: Vec<(Level, String)>,
}

thread_local! {
    /// The host of the call that this thread is in.
    static CURRENT: RefCell<Option<(Phase, Host)>> = const { RefCell::new(None) };
}

impl Host {
    pub(super) fn new(vocabulary: Rc<Vocabulary>, seed: i64, choice: u32, lane: u32) -> Self {
        let chance = Chance {
            seed,
            position: 0,
            choice,
            lane,
        };
        Self {
            vocabulary,
            chance,
            ..Self::default()
        }
    }

    /// The next position, after so many more tokens. Refuses a row that no
    /// model gives.
    pub(super) fn start(&mut self, n_accepted: usize, row: &[f32]) -> Result<(), Failure> {
        let size = self.vocabulary.size();
        if row.len() != size as usize {
            let message = format!("the row has {} logits, the vocabulary {size}", row.len());
            return Err(Failure::new("model_row", message));
        }
        let is_no_logit = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        if let Some(id) = row.iter().position(is_no_logit) {
            let message = format!("the logit of the token {id} is {}", row[id]);
            return Err(Failure::new("model_row", message));
        }
        if row.iter().all(|&logit| logit == f32::NEG_INFINITY) {
            let message = "every logit of the row is negative infinity";
            return Err(Failure::new("all_banned", message));
        }
        self.chance.position += n_accepted as u32;
        self.edits.clear();
        self.decision = None;
        self.row = row.to_vec();
        Ok(())
    }
}

/// Calls the plugin, with `host` behind its imports. A panic is a trap; a call
/// of an import that the contract forbids is its own kind of failure.
pub(super) fn call<T>(
    host: &mut Host,
    phase: Phase,
    call: impl FnOnce() -> T,
) -> Result<T, Failure> {
    let outer = CURRENT.replace(Some((phase, mem::take(host))));
    let result = panic::catch_unwind(AssertUnwindSafe(call));
    if let Some((_, own)) = CURRENT.replace(outer) {
        *host = own;
    }
    result.map_err(|payload| failure(phase, payload))
}

fn failure(phase: Phase, payload: Box<dyn Any + Send>) -> Failure {
    let function = phase.function();
    let payload = match payload.downcast::<Failure>() {
        Ok(failure) => {
            return Failure::new(
                failure.kind,
                format!("in `{function}`, {}", failure.message),
            );
        }
        Err(payload) => payload,
    };
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let message = match text {
        Some(text) => format!("`{function}` panicked: {text}"),
        None => format!("`{function}` panicked"),
    };
    Failure::new("trap", message)
}

/// Serves a call of an import, which ends the plugin's own call where the
/// contract forbids it.
pub(super) fn serve<T>(
    import: &str,
    phases: &[Phase],
    serve: impl FnOnce(&mut Host) -> Result<T, Failure>,
) -> T {
    let served = CURRENT.with_borrow_mut(|current| {
        let (phase, host) = current.as_mut()?;
        if let Err(message) = phase.check(import, phases) {
            return Some(Err(Failure::new("invalid_call", message)));
        }
        Some(serve(host))
    });
    match served {
        Some(Ok(value)) => value,
        // Not by `panic!`, whose message would be shown as if it were a defect.
        Some(Err(failure)) => panic::resume_unwind(Box::new(failure)),
        None => panic!(
            "`{import}` was called with no host behind it: it works inside a component, and in \
             what `sluice_plugin::testing` calls"
        ),
    }
}

/// Keeps a message, and shows it with the test's output.
pub(super) fn write(level: Level, message: &str) {
    let name = match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    };
    eprintln!("{name}: {message}");
    CURRENT.with_borrow_mut(|current| {
        if let Some((_, host)) = current {
            host.log.push((level, message.to_owned()));
        }
    });
}
