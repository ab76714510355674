//! What went wrong in a plugin, in words for its author.

use std::time::Duration;

use wasmtime::Trap;

use super::deadline::Deadline;
use super::edits::EditError;
use crate::engine::Fault;

/// The kinds of [`Fault`], stable.
pub(super) mod kind {
    pub(crate) const DEADLINE: &str = "deadline";
    pub(crate) const TRAP: &str = "trap";
    pub(crate) const MEMORY: &str = "memory";
    pub(crate) const INVALID_CALL: &str = "invalid_call";
    pub(crate) const INVALID_EDIT: &str = "invalid_edit";
    pub(crate) const INVALID_DECISION: &str = "invalid_decision";
    pub(crate) const INVALID_ROW: &str = "invalid_row";
    /// The model's own row, which no plugin is to blame for.
    pub(crate) const MODEL_ROW: &str = "model_row";
    pub(crate) const BANNED_TOKEN: &str = "banned_token";
    pub(crate) const ALL_BANNED: &str = "all_banned";
    pub(crate) const ERROR: &str = "error";
    pub(crate) const OPEN: &str = "open";
    /// Others left it no time: the stages before it, or the other choices.
    pub(crate) const LATE: &str = "late";
    /// The stages have taken too long in the sequence as a whole.
    pub(crate) const TOTAL_TIME: &str = "total_time";
    /// The instance had ended by an earlier fault, of another choice perhaps.
    pub(crate) const ENDED: &str = "ended";
    /// Others have taken the room that it needed.
    pub(crate) const NO_ROOM: &str = "no_room";
}

/// A guest broke a rule of the contract in a call to the host. It ends the
/// guest's call like a trap.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct HostFault {
    pub(super) kind: &'static str,
    pub(super) message: String,
}

impl HostFault {
    pub(super) fn new(kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }
}

/// Longest message of a guest that is kept, in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 2_000;

/// Cuts a guest's message to a length that an answer can carry.
pub(super) fn shorten(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        message.push('…');
    }
    message
}

pub(super) fn fault(stage: &str, kind: &'static str, message: impl Into<String>) -> Fault {
    Fault {
        stage: stage.to_owned(),
        kind,
        message: message.into(),
    }
}

/// Reads the error that ended a call of the guest's `function`, which had `left`
/// of its deadline when it began. `panic` is what the guest last wrote to `log` as
/// an error during the call.
pub(super) fn from_error(
    stage: &str,
    function: &str,
    deadline: Deadline,
    left: Duration,
    error: &wasmtime::Error,
    panic: Option<&str>,
) -> Fault {
    if let Some(HostFault { kind, message }) = error.downcast_ref() {
        return fault(stage, kind, format!("in `{function}`, {message}"));
    }
    if let Some(message) = error.downcast_ref::<EditError>() {
        return fault(
            stage,
            kind::INVALID_EDIT,
            format!("in `{function}`, {message}"),
        );
    }
    let Some(trap) = error.downcast_ref::<Trap>() else {
        let cause = error.root_cause();
        return fault(
            stage,
            kind::INVALID_CALL,
            format!("in `{function}`, {cause}"),
        );
    };
    let limit = deadline.limit();
    match trap {
        // With half of the limit and more a call has only itself to blame.
        Trap::Interrupt if left < limit / 2 => fault(
            stage,
            kind::LATE,
            format!(
                "`{function}` was interrupted after {left:?}: what came before it had used up the \
                 rest of the limit of {limit:?} that they share"
            ),
        ),
        Trap::Interrupt => fault(
            stage,
            kind::DEADLINE,
            format!("`{function}` ran for longer than its limit of {limit:?}"),
        ),
        Trap::StackOverflow => fault(
            stage,
            kind::TRAP,
            format!("`{function}` recursed until its stack was used up"),
        ),
        Trap::UnreachableCodeReached => fault(
            stage,
            kind::TRAP,
            match panic {
                Some(panic) => format!("`{function}` panicked: {panic}"),
                None => format!("`{function}` executed `unreachable`, as a panic does"),
            },
        ),
        other => fault(
            stage,
            kind::TRAP,
            format!("`{function}` trapped: {}", cause(*other)),
        ),
    }
}

fn cause(trap: Trap) -> String {
    let text = trap.to_string();
    match text.strip_prefix("wasm trap: ") {
        Some(cause) => cause.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_had_little_time_left_is_late_and_not_to_blame() {
        let limit = Duration::from_millis(50);
        let after = |left| {
            let error = wasmtime::Error::from(Trap::Interrupt);
            from_error("x", "plan", Deadline::after(limit), left, &error, None)
        };
        for milliseconds in [50, 49, 25] {
            let fault = after(Duration::from_millis(milliseconds));
            assert_eq!(fault.kind, kind::DEADLINE, "{milliseconds}");
        }
        for milliseconds in [24, 1, 0] {
            let fault = after(Duration::from_millis(milliseconds));
            assert_eq!(fault.kind, kind::LATE, "{milliseconds}");
            assert!(fault.message.contains("limit of 50ms"), "{fault}");
        }
    }
}
