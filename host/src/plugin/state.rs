//! What the host keeps beside one instance: the data of its store.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::crossed::Crossed;
use super::edits::Edits;
use super::fault::{HostFault, MAX_MESSAGE_BYTES, kind, shorten};
use super::memory::MemoryLimiter;
use super::record::LogLine;
use super::vocabulary::Vocabulary;
use sluice_contract::chance::Chance;
use sluice_contract::phase::{Decision, Phase};
use sluice_kernels::Loan;

/// The data of one instance's store.
pub(super) struct HostState {
    pub(super) phase: Phase,
    /// Absent at upload, where no model is loaded.
    pub(super) vocabulary: Option<Arc<Vocabulary>>,
    pub(super) has_read_vocabulary: Cell<bool>,
    /// Recorded by the call that runs.
    pub(super) edits: Edits,
    /// Made by the call that runs.
    pub(super) decision: Option<Decision>,
    /// The row that the call may read.
    pub(super) row: Loan,
    pub(super) chance: Chance,
    /// Over the boundary in the call that runs.
    pub(super) crossed: Crossed,
    pub(super) log: Log,
    pub(super) memory: MemoryLimiter,
    /// When the call that runs has to be over.
    pub(super) end: Instant,
    /// What the request's choices hold as long as somebody waits for them; none
    /// outside of requests.
    pub(super) wanted: Option<Weak<()>>,
}

impl HostState {
    pub(super) fn new(
        stage: &str,
        vocabulary: Option<Arc<Vocabulary>>,
        memory: MemoryLimiter,
    ) -> Self {
        Self {
            phase: Phase::Instantiate,
            vocabulary,
            has_read_vocabulary: Cell::new(false),
            edits: Edits::default(),
            decision: None,
            row: Loan::default(),
            chance: Chance::default(),
            crossed: Crossed::default(),
            log: Log::new(stage),
            memory,
            end: Instant::now(),
            wanted: None,
        }
    }

    /// Whether nobody waits any more for what the instance does.
    pub(super) fn is_abandoned(&self) -> bool {
        let wanted = self.wanted.as_ref();
        wanted.is_some_and(|wanted| wanted.strong_count() == 0)
    }

    /// Makes a call of an import that is not allowed now a fault.
    pub(super) fn only_in(&self, import: &str, phases: &[Phase]) -> Result<(), HostFault> {
        let checked = self.phase.check(import, phases);
        checked.map_err(|message| HostFault::new(kind::INVALID_CALL, message))
    }

    /// The vocabulary, for an import that needs it.
    pub(super) fn vocabulary(&self, import: &str) -> Result<&Arc<Vocabulary>, HostFault> {
        self.only_in(import, Phase::VOCABULARY)?;
        self.has_read_vocabulary.set(true);
        self.vocabulary.as_ref().ok_or_else(|| {
            HostFault::new(
                kind::INVALID_CALL,
                format!("`{import}` was called while no model is loaded"),
            )
        })
    }
}

/// Most messages of one instance that are passed on.
const MAX_MESSAGES: u32 = 1_000;
/// Most messages of one call that are passed on.
const MAX_CALL_MESSAGES: usize = 20;

/// What the guest wrote to `log`: passed on to the server's own log and to
/// whoever takes it, and the last error kept for the fault it may explain.
pub(super) struct Log {
    stage: String,
    n_messages: u32,
    /// Not taken yet.
    lines: Vec<LogLine>,
    /// Printed, and not ended by a newline yet.
    unfinished: Option<(tracing::Level, String)>,
    last_error: Option<String>,
}

impl Log {
    fn new(stage: &str) -> Self {
        Self {
            stage: stage.to_owned(),
            n_messages: 0,
            lines: Vec::new(),
            unfinished: None,
            last_error: None,
        }
    }

    pub(super) fn write(&mut self, level: tracing::Level, message: String) {
        let message = shorten(message);
        if level == tracing::Level::ERROR {
            self.last_error = Some(message.clone());
        }
        if self.n_messages == MAX_MESSAGES || self.lines.len() == MAX_CALL_MESSAGES {
            return;
        }
        self.n_messages += 1;
        let stage = self.stage.as_str();
        let level = match level {
            tracing::Level::ERROR => {
                tracing::error!(target: "plugin", stage, "{message}");
                "error"
            }
            tracing::Level::WARN => {
                tracing::warn!(target: "plugin", stage, "{message}");
                "warn"
            }
            tracing::Level::INFO => {
                tracing::info!(target: "plugin", stage, "{message}");
                "info"
            }
            _ => {
                tracing::debug!(target: "plugin", stage, "{message}");
                "debug"
            }
        };
        self.lines.push(LogLine { level, message });
    }

    /// Takes printed text, of which each line is a message.
    pub(super) fn print(&mut self, level: tracing::Level, text: &str) {
        if self.unfinished.as_ref().is_some_and(|(of, _)| *of != level) {
            self.end_line();
        }
        for part in text.split_inclusive('\n') {
            let (_, line) = self.unfinished.get_or_insert((level, String::new()));
            line.push_str(part);
            if line.ends_with('\n') || line.len() >= MAX_MESSAGE_BYTES {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        if let Some((level, line)) = self.unfinished.take()
            && !line.trim().is_empty()
        {
            self.write(level, line.trim_end().to_owned());
        }
    }

    /// The messages since the last time.
    pub(super) fn take(&mut self) -> Vec<LogLine> {
        self.end_line();
        std::mem::take(&mut self.lines)
    }

    pub(super) fn clear_error(&mut self) {
        self.last_error = None;
    }

    pub(super) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}
