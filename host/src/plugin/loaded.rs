//! A plugin that was uploaded and can be used.

use std::fmt;
use std::time::{Instant, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fault::{fault, kind};
use super::instance::Linked;
use super::record::{Breaker, LogLine, Record, Work};
use super::schema::ParamsSchema;
use super::vocabulary::Vocabulary;
use crate::engine::Fault;

/// What a plugin does in a chain. The order is that of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Decides from tokens alone.
    TokenProcessor,
    /// Reads and changes the logits.
    LogitsProcessor,
    /// Chooses the token.
    Sampler,
}

impl Kind {
    /// All kinds, in the order of a chain.
    pub(super) const ALL: [Self; 3] = [Self::TokenProcessor, Self::LogitsProcessor, Self::Sampler];

    /// The name of the interface that a plugin of this kind exports.
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenProcessor => "token-processor",
            Self::LogitsProcessor => "logits-processor",
            Self::Sampler => "sampler",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A plugin: what it says of itself, and its compiled code.
pub struct Plugin {
    /// Lower-case letters, digits and dashes.
    pub name: String,
    /// Its own version, not the contract's.
    pub version: semver::Version,
    /// `sha256:` and the 64 hexadecimal digits of the uploaded bytes' SHA-256.
    pub digest: String,
    /// What it does in a chain.
    pub kind: Kind,
    /// One sentence.
    pub summary: String,
    /// JSON Schema of the parameters object.
    pub params_schema: Value,
    /// Size of the upload.
    pub size_bytes: usize,
    /// Whether it came with the server.
    pub builtin: bool,
    /// When it was uploaded.
    pub uploaded_at: SystemTime,
    /// The name of the token it was uploaded with, if there was one.
    pub uploaded_by: Option<String>,
    pub(super) linked: Linked,
    pub(super) validator: ParamsSchema,
    /// Digest of the vocabulary that its memory is prepared with, if it is.
    pub(super) prepared_for: Option<String>,
    pub(super) record: Record,
}

/// The parameters of a stage do not fit the plugin's schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParamsError {
    /// JSON pointer to the value at fault, empty for the object itself.
    pub pointer: String,
    /// What is wrong with it.
    pub message: String,
}

impl Plugin {
    /// The last messages that it wrote in any request, oldest first.
    pub fn messages(&self) -> Vec<(SystemTime, LogLine)> {
        self.record.messages()
    }

    /// How often it failed.
    pub fn n_faults(&self) -> u64 {
        self.record.n_faults()
    }

    /// What the stages of all versions of its name have done.
    pub fn work_of_name(&self) -> Work {
        self.record.totals().work()
    }

    /// How often plugins of its name have failed.
    pub fn n_faults_of_name(&self) -> u64 {
        self.record.totals().n_faults()
    }

    /// Linear memory of the instances that it has now, in bytes, touched or not.
    pub fn memory_bytes(&self) -> usize {
        self.record.memory.used_bytes()
    }

    /// Counts a fault. What came with the server is never disabled.
    pub(super) fn failed(&self, fault: &Fault, breaker: Breaker) {
        let faults = if self.builtin { 0 } else { breaker.faults };
        let breaker = Breaker { faults, ..breaker };
        self.record.fault(fault, breaker, Instant::now());
    }

    /// Why it may not be used: it failed too often.
    pub fn disabled(&self) -> Option<String> {
        self.record.disabled()
    }

    /// Lets it be used again.
    pub fn enable(&self) {
        self.record.enable();
    }

    /// Checks the parameters object of one stage against the plugin's schema.
    ///
    /// # Errors
    /// The first violation.
    pub fn validate_params(&self, params: &Value) -> Result<(), ParamsError> {
        self.validator.validate(params)
    }

    /// Whether instances start as `prepare` would leave them.
    ///
    /// # Errors
    /// When they start as another vocabulary's `prepare` left them.
    pub(super) fn is_prepared(&self, vocabulary: &Vocabulary) -> Result<bool, Fault> {
        match &self.prepared_for {
            None => Ok(false),
            Some(digest) if digest == vocabulary.digest() => Ok(true),
            Some(_) => Err(fault(
                &self.name,
                kind::OPEN,
                "the plugin was prepared with the vocabulary of another model",
            )),
        }
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}@{}", self.kind, self.name, self.version)
    }
}
