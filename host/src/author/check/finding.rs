//! What is found, each with what to do about it.

use std::collections::BTreeSet;

use crate::engine::Fault;
use crate::plugin::UploadCode;

/// What was found and what was looked at.
#[derive(Debug, Default)]
pub(super) struct Findings {
    lines: Vec<String>,
    notes: Vec<String>,
    /// What was found already: one example of each is enough.
    seen: BTreeSet<String>,
    pub(super) n_contexts: u32,
    pub(super) n_positions: u32,
    pub(super) n_splits: u32,
    pub(super) n_rows: u32,
}

impl Findings {
    /// The first of a kind is kept.
    pub(super) fn add(&mut self, kind: &str, what: &str, cure: &str) {
        if self.seen.insert(kind.to_owned()) {
            self.lines.push(line(what, cure));
        }
    }

    /// A call that failed. `place` says where.
    pub(super) fn fault(&mut self, fault: &Fault, place: &str) {
        let what = format!("{place}, {} ({})", fault.message, fault.kind);
        self.add(fault.kind, &what, cure_of_fault(fault.kind));
    }

    /// Whether a call ran into its deadline. Every further one may, too.
    pub(super) fn has_run_late(&self) -> bool {
        self.seen.contains("deadline")
    }

    /// What an author should know and is allowed.
    pub(super) fn note(&mut self, what: &str) {
        self.notes.push(format!("note: {what}."));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Prints all of it, and says whether all is well.
    pub(super) fn print(&self) -> bool {
        for line in self.lines.iter().chain(&self.notes) {
            println!("{line}");
        }
        let found = match self.lines.len() {
            0 => "nothing found".to_owned(),
            1 => "1 finding".to_owned(),
            n => format!("{n} findings"),
        };
        println!(
            "checked {} contexts, {} positions, {} splits and {} rows: {found}",
            self.n_contexts, self.n_positions, self.n_splits, self.n_rows
        );
        self.is_empty()
    }
}

/// A finding in one line, whatever it quotes.
pub(super) fn line(what: &str, cure: &str) -> String {
    let words: Vec<_> = what.split_whitespace().collect();
    format!("finding: {}. Cure: {cure}.", words.join(" "))
}

/// A place in a sequence, in words.
pub(super) fn after(n_tokens: usize) -> String {
    let plural = if n_tokens == 1 { "" } else { "s" };
    format!("after {n_tokens} token{plural}")
}

/// What to do about a fault, by its kind.
fn cure_of_fault(kind: &str) -> &'static str {
    match kind {
        "deadline" => "do less in one call, and what depends on the vocabulary alone in `prepare`",
        "trap" => "return an error where something cannot be done; do not panic",
        "memory" => "keep less: a server gives each instance 256 MiB by default",
        "invalid_call" => {
            "call each import only where the contract allows it, with values it takes and lists of \
             at most 8 MiB"
        }
        "invalid_edit" => {
            "give `edits` ids below `vocabulary-size`, finite values or negative infinity to ban, and \
             one mask in the place of very many ids"
        }
        "invalid_decision" => "decide once in a call, with at least one id of the vocabulary",
        "invalid_row" => {
            "return as many values as the row has; none is NaN or positive infinity, and a banned \
             logit is negative infinity: mind its differences and quotients"
        }
        "banned_token" => "choose among the tokens whose logit is above negative infinity",
        "all_banned" => "leave at least one token, or end the sequence with `control.stop`",
        "error" => "return an error only for what nobody can go on with",
        _ => "see what the message names",
    }
}

/// What to do about a refused upload.
pub(super) fn cure_of_upload(code: UploadCode) -> &'static str {
    match code {
        UploadCode::TooLarge => "build for size, without debug information",
        UploadCode::TruncatedComponent => "build or copy the file again, it is not whole",
        UploadCode::NotAComponent | UploadCode::TextComponent | UploadCode::NativeCode => {
            "give the binary component that the build made"
        }
        UploadCode::InvalidComponent => {
            "build it with bindings of the contract in `wit/`, which put the component type in"
        }
        UploadCode::NoKind | UploadCode::SeveralKinds | UploadCode::WrongType => {
            "implement exactly one of the three worlds of the contract, all of it"
        }
        UploadCode::UnknownImport => {
            "build for a target without WASI, such as wasm32-unknown-unknown, and take chance from \
             `random`"
        }
        UploadCode::ContractVersion => "build it against the contract of this server",
        UploadCode::DescribeFailed => {
            "let `describe` return constants; it calls no import but `log`"
        }
        UploadCode::InvalidDescription => {
            "a name of lower-case letters, digits and dashes, a semantic version, one sentence, and \
             a JSON Schema of an object"
        }
        UploadCode::TooComplex | UploadCode::CompileTimeout | UploadCode::CompileCrashed => {
            "make it smaller and its functions plainer; see what a generated function has"
        }
        UploadCode::RegistryFull => "remove plugins from the registry",
        UploadCode::VersionConflict => "raise its version",
        UploadCode::Internal => "this is no fault of the plugin; see the message",
    }
}
