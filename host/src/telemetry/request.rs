//! What there is to say of a request once it is over.

use std::time::{Duration, Instant};

/// A request and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestFacts {
    pub id: String,
    pub method: String,
    pub path: String,
    /// The path of the interface that it matched, or `none`.
    pub route: String,
    /// The name of its token.
    pub caller: Option<String>,
    pub status: u16,
    pub generation: Option<Generation>,
}

/// What was generated for a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// `chat` or `text_completion`.
    pub operation: &'static str,
    pub model: String,
    pub stream: bool,
    pub n_choices: usize,
    pub prompt_tokens: usize,
    /// Of those, in the cache already.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    /// The stages that choose its tokens, in order: `name@version`.
    pub stages: Vec<String>,
    /// When the first token was there, and how long after the last byte of the
    /// request.
    pub first_token: Option<(Instant, Duration)>,
    /// Of the choices that have ended, in that order: finish reasons, and codes
    /// of errors.
    pub reasons: Vec<&'static str>,
}

impl Generation {
    /// The code of the error that ended a choice, if one was; a client that left
    /// is none.
    pub fn error(&self) -> Option<&'static str> {
        const GOOD: [&str; 4] = ["stop", "length", "tool_calls", "cancelled"];
        let mut reasons = self.reasons.iter();
        reasons.find(|reason| !GOOD.contains(reason)).copied()
    }
}
