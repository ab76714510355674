//! What chance did at earlier positions is not remembered, but for the tokens
//! that it led to.

use super::context::Context;
use super::finding::Findings;
use super::subject::Subject;

/// Chances that the earlier positions are given.
const CHANCES: [i64; 4] = [11, 12, 13, 14];
/// Tokens that lead to the position.
const LENGTH: usize = 8;

pub(super) fn check(subject: &Subject<'_>, contexts: &[Context], findings: &mut Findings) {
    for context in contexts {
        let tokens = &context.tokens[..context.tokens.len().min(LENGTH)];
        let mut first = None;
        for chance in CHANCES {
            let Some(mut chain) = subject.open(&context.prompt, findings) else {
                return;
            };
            let Some(outcome) = subject.by_necessity(&mut chain, tokens, chance) else {
                break;
            };
            let Some(first) = &first else {
                first = Some(outcome);
                continue;
            };
            if let Some(difference) = outcome.difference(first, subject.kind) {
                let what = format!(
                    "after the same tokens, rows and chance it does different things, depending on \
                     the chance of earlier positions: {difference}"
                );
                let cure = "keep nothing from `random` between calls; follow the accepted tokens";
                findings.add("chance", &what, cure);
                return;
            }
        }
    }
}
