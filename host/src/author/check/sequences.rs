//! The same calls have the same results: in a second instance, and beside
//! other sequences in the same instance.

use super::super::outcome::{Outcome, ask};
use super::context::Context;
use super::finding::{Findings, after};
use super::subject::Subject;
use crate::plugin::OpenChain;

pub(super) fn check(subject: &Subject<'_>, contexts: &[Context], findings: &mut Findings) {
    let others = contexts.iter().cycle().skip(1);
    for (context, other) in contexts.iter().zip(others) {
        if let Some(mut again) = subject.open(&context.prompt, findings)
            && let Some(difference) = repeat(subject, context, &mut again, &mut [], other)
        {
            findings.add(
                "determinism",
                &format!("two instances do different things in the same calls: {difference}"),
                "take chance from `random` alone; use no address, clock or hash order",
            );
        }
        let Some(mut beside) = subject.open_all(&context.prompt, 3, findings) else {
            return;
        };
        // Opened second, so that it does not have the addresses of the first.
        let mut chain = beside.remove(1);
        if let Some(difference) = repeat(subject, context, &mut chain, &mut beside, other) {
            findings.add(
                "sharing",
                &format!(
                    "beside other sequences of its instance it does different things: {difference}"
                ),
                "keep a sequence's state in its resource, none in statics, and use no address",
            );
        }
    }
}

/// Makes the calls of `context` again, each after calls of the `others` with
/// another context. Says what is different.
fn repeat(
    subject: &Subject<'_>,
    context: &Context,
    chain: &mut OpenChain,
    others: &mut [OpenChain],
    other: &Context,
) -> Option<String> {
    let (mut told, mut told_others) = (0, 0);
    for (n, expected) in &context.asked {
        let n_others = (*n).min(other.tokens.len());
        for beside in &mut *others {
            let accepted = &other.tokens[told_others..n_others];
            let outcome = ask(beside, accepted, &subject.row(n_others + 1));
            // It may refuse these tokens; anything else ended the instance.
            if matches!(outcome, Outcome::Failed(fault) if fault.kind != "error") {
                return None;
            }
        }
        told_others = n_others;
        let outcome = ask(chain, &context.tokens[told..*n], &subject.row(*n));
        told = *n;
        if let Some(difference) = expected.difference(&outcome, subject.kind) {
            return Some(format!("{}, {difference}", after(*n)));
        }
    }
    None
}
