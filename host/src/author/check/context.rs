//! Contexts that the plugin is asked in: some that it chose itself, token by
//! token, and some as a prompt or other stages may bring them.

use super::super::outcome::{Outcome, ask};
use super::finding::{Findings, after};
use super::subject::Subject;
use crate::engine::TokenId;

const N_FOLLOWED: u64 = 2;
const N_RANDOM: u64 = 2;
/// Tokens of a context.
const LENGTH: usize = 24;
const PROMPT: usize = 12;

/// A context and what the plugin did in it, asked at every position.
pub(super) struct Context {
    pub(super) prompt: Vec<TokenId>,
    pub(super) tokens: Vec<TokenId>,
    /// After how many tokens it was asked, and what it did.
    pub(super) asked: Vec<(usize, Outcome)>,
}

/// `None` if it does not open or has to be interrupted.
pub(super) fn make(subject: &Subject<'_>, findings: &mut Findings) -> Option<Vec<Context>> {
    let mut contexts = Vec::new();
    for stream in 0..N_FOLLOWED {
        contexts.push(follow(subject, stream, findings)?);
        if findings.has_run_late() {
            return None;
        }
    }
    for stream in N_FOLLOWED..N_FOLLOWED + N_RANDOM {
        contexts.push(bring(subject, stream, findings)?);
        if findings.has_run_late() {
            return None;
        }
    }
    for context in &contexts {
        findings.n_contexts += 1;
        findings.n_positions += context.asked.len() as u32;
    }
    Some(contexts)
}

/// The plugin's own text: what the chain chose or forced is accepted. Any fault
/// is its own.
fn follow(subject: &Subject<'_>, stream: u64, findings: &mut Findings) -> Option<Context> {
    let mut random = subject.random(stream);
    let prompt = random.tokens(PROMPT, Subject::n_texts());
    let mut chain = subject.open(&prompt, findings)?;
    let (mut tokens, mut asked) = (Vec::new(), Vec::new());
    let mut told = 0;
    while tokens.len() < LENGTH && tokens.last() != Some(&Subject::end_id()) {
        let outcome = ask(&mut chain, &tokens[told..], &subject.row(tokens.len()));
        asked.push((tokens.len(), outcome.clone()));
        told = tokens.len();
        match outcome {
            Outcome::Chose { token, .. } => tokens.push(token),
            Outcome::Forced(forced) => extend(&mut tokens, &forced),
            Outcome::Stopped => break,
            Outcome::Failed(fault) => {
                findings.fault(&fault, &after(told));
                break;
            }
        }
    }
    Some(Context {
        prompt,
        tokens,
        asked,
    })
}

/// Appends what was forced, as the engine does: up to an end id and the length
/// limit.
fn extend(tokens: &mut Vec<TokenId>, forced: &[TokenId]) {
    for &token in forced.iter().take(LENGTH - tokens.len()) {
        tokens.push(token);
        if token == Subject::end_id() {
            break;
        }
    }
}

/// Tokens that it did not choose. It may refuse to go on with them.
fn bring(subject: &Subject<'_>, stream: u64, findings: &mut Findings) -> Option<Context> {
    let mut random = subject.random(stream);
    let prompt = random.tokens(PROMPT, Subject::n_texts());
    // Few different ones, so that there is something to count.
    let some = random.tokens(6, Subject::n_texts());
    let tokens: Vec<_> = (0..LENGTH)
        .map(|_| some[random.below(some.len())])
        .collect();
    let mut chain = subject.open(&prompt, findings)?;
    let mut asked = Vec::new();
    for n in 0..=LENGTH {
        let accepted = &tokens[n.saturating_sub(1)..n];
        let outcome = ask(&mut chain, accepted, &subject.row(n));
        asked.push((n, outcome.clone()));
        if let Outcome::Failed(fault) = outcome {
            if fault.kind != "error" {
                findings.fault(&fault, &after(n));
            }
            break;
        }
    }
    Some(Context {
        prompt,
        tokens,
        asked,
    })
}
