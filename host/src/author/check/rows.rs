//! Rows that are rare and come: flat ones, extreme ones, and ones on which
//! little is left.

use super::super::outcome::{Outcome, ask};
use super::context::Context;
use super::finding::{Findings, after};
use super::subject::Subject;
use crate::plugin::Kind;

const BANNED: f32 = f32::NEG_INFINITY;
/// Further from zero than any model's logits.
const EXTREME: f32 = 1e4;
/// How many tokens a sequence has when it meets the rows.
const AFTER: [usize; 2] = [0, 5];

struct Rare {
    name: &'static str,
    row: Vec<f32>,
    /// No token is banned, so a processor that bans all is to blame.
    is_open: bool,
}

pub(super) fn check(subject: &Subject<'_>, contexts: &[Context], findings: &mut Findings) {
    for context in contexts {
        for n in AFTER {
            for rare in rows(subject, context, n) {
                meet(subject, context, n, &rare, findings);
            }
        }
    }
}

fn meet(subject: &Subject<'_>, context: &Context, n: usize, rare: &Rare, findings: &mut Findings) {
    if findings.has_run_late() {
        return;
    }
    let Some(mut chain) = subject.open(&context.prompt, findings) else {
        return;
    };
    findings.n_rows += 1;
    let tokens = &context.tokens[..n.min(context.tokens.len())];
    let Outcome::Failed(fault) = ask(&mut chain, tokens, &rare.row) else {
        return;
    };
    let bans_rest = fault.kind == "all_banned" && !rare.is_open && subject.kind != Kind::Sampler;
    // It may refuse tokens that it did not choose.
    let refuses = fault.kind == "error" && subject.kind == Kind::TokenProcessor;
    if !bans_rest && !refuses {
        findings.fault(&fault, &format!("{}, on {}", after(n), rare.name));
    }
}

fn rows(subject: &Subject<'_>, context: &Context, n: usize) -> Vec<Rare> {
    let usual = subject.row(n);
    let each = |logit: &dyn Fn(usize, f32) -> f32| {
        let logits = usual.iter().enumerate();
        logits.map(|(id, &usual)| logit(id, usual)).collect()
    };
    let left = context.tokens.get(n).copied().unwrap_or_default();
    let rare = |name, is_open, row| Rare { name, row, is_open };
    vec![
        rare("a row of zeros", true, each(&|_, _| 0.0)),
        rare("a row of equal logits of 1e4", true, each(&|_, _| EXTREME)),
        rare(
            "a row of equal logits of -1e4",
            true,
            each(&|_, _| -EXTREME),
        ),
        rare(
            "a row of 1e4 and -1e4 in turn",
            true,
            each(&|id, _| if id % 2 == 0 { EXTREME } else { -EXTREME }),
        ),
        rare(
            "a row with one logit of 1e4",
            true,
            each(&|id, usual| if id == left as usize { EXTREME } else { usual }),
        ),
        rare(
            "a row with every second token banned",
            false,
            each(&|id, usual| if id % 2 == 0 { BANNED } else { usual }),
        ),
        rare(
            "a row with two tokens left",
            false,
            each(&|id, usual| {
                let is_left = id == left as usize || id == left as usize + 1;
                if is_left { usual } else { BANNED }
            }),
        ),
        rare("a row with one token left", false, Subject::only(left)),
    ]
}
