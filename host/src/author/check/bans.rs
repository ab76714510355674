//! A banned token is left alone: raising one has no effect, so a plugin that
//! does it counts on what it will not get.

use super::super::outcome::{Outcome, ask};
use super::context::Context;
use super::finding::{Findings, after};
use super::subject::Subject;
use crate::engine::TokenId;

/// How many tokens a sequence has when it is asked.
const AFTER: [usize; 2] = [0, 5];

/// For logits processors, which see the bans.
pub(super) fn check(subject: &Subject<'_>, contexts: &[Context], findings: &mut Findings) {
    for context in contexts {
        for n in AFTER {
            if raise(subject, context, n, findings).is_none() {
                return;
            }
        }
    }
}

/// `None` if it cannot be asked, which is told of elsewhere, or is found.
fn raise(
    subject: &Subject<'_>,
    context: &Context,
    n: usize,
    findings: &mut Findings,
) -> Option<()> {
    let tokens = &context.tokens[..n.min(context.tokens.len())];
    let usual = subject.row(n);
    let banned: Vec<_> = (0..)
        .zip(&usual)
        .map(|(id, &logit)| {
            if id % 2 == 1 {
                f32::NEG_INFINITY
            } else {
                logit
            }
        })
        .collect();
    let mut chain = subject.open_explained(&context.prompt, findings)?;
    let Outcome::Chose { row: changed, .. } = ask(&mut chain, tokens, &usual) else {
        return None;
    };
    let mut chain = subject.open_explained(&context.prompt, findings)?;
    let Outcome::Chose { .. } = ask(&mut chain, tokens, &banned) else {
        return None;
    };
    // What it raises anyway, banned or not, is a bias and no attempt on a ban.
    let raised_anyway = |id: TokenId| changed[id as usize] > usual[id as usize];
    // Padding is banned in both.
    let is_attempt = |id: &TokenId| *id <= Subject::end_id() && !raised_anyway(*id);
    let Some(id) = chain.raises_banned(&banned).into_iter().find(is_attempt) else {
        return Some(());
    };
    let what = format!(
        "{}, on a row with every second token banned, it raises the banned token {id}, which stays \
         banned",
        after(n)
    );
    let cure = "leave logits of negative infinity as they are: no stage can raise them";
    findings.add("bans", &what, cure);
    None
}
