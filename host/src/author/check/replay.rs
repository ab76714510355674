//! A sequence told of everything at once does what the one did that was told
//! bit by bit.

use std::collections::BTreeMap;

use super::super::outcome::{Outcome, ask};
use super::context::Context;
use super::finding::{Findings, after};
use super::subject::Subject;

const N_SPLITS: u64 = 6;
const CURE: &str = "let state follow from all accepted tokens in order alone, `open`'s params \
                    included: count tokens, not calls, and do not remember what was decided";

/// For token processors, whose sequences are rebuilt by a replay.
pub(super) fn check(subject: &Subject<'_>, contexts: &[Context], findings: &mut Findings) {
    for (stream, context) in (100..).step_by(N_SPLITS as usize).zip(contexts) {
        let mut replays = Replays::new(subject, context);
        for (n, outcome) in &context.asked {
            compare(&mut replays, *n, outcome, "token by token", findings);
        }
        for split in 0..N_SPLITS {
            run_split(subject, stream + split, &mut replays, findings);
        }
    }
}

/// What a fresh instance does that is told of the first tokens at once.
struct Replays<'a> {
    subject: &'a Subject<'a>,
    context: &'a Context,
    known: BTreeMap<usize, Outcome>,
}

impl<'a> Replays<'a> {
    fn new(subject: &'a Subject<'a>, context: &'a Context) -> Self {
        Self {
            subject,
            context,
            known: BTreeMap::new(),
        }
    }

    fn get(&mut self, n: usize, findings: &mut Findings) -> Option<&Outcome> {
        if !self.known.contains_key(&n) {
            let (prompt, tokens) = (&self.context.prompt, &self.context.tokens[..n]);
            let outcome = self.subject.at_once(prompt, tokens, findings)?;
            self.known.insert(n, outcome);
        }
        self.known.get(&n)
    }
}

fn compare(
    replays: &mut Replays<'_>,
    n: usize,
    outcome: &Outcome,
    how: &str,
    findings: &mut Findings,
) {
    let kind = replays.subject.kind;
    let Some(replay) = replays.get(n, findings) else {
        return;
    };
    if let Some(difference) = replay.difference(outcome, kind) {
        let what = format!(
            "{} it does one thing told of all at once and another told {how}: {difference}",
            after(n)
        );
        findings.add("replay", &what, CURE);
    }
}

/// Tells a fresh instance in pieces, and asks after each.
fn run_split(
    subject: &Subject<'_>,
    stream: u64,
    replays: &mut Replays<'_>,
    findings: &mut Findings,
) {
    let context = replays.context;
    let Some(mut chain) = subject.open(&context.prompt, findings) else {
        return;
    };
    findings.n_splits += 1;
    let mut random = subject.random(stream);
    let (mut told, mut cuts) = (0, Vec::new());
    loop {
        let n = (told + random.below(6)).min(context.tokens.len());
        cuts.push(n - told);
        let outcome = ask(&mut chain, &context.tokens[told..n], &subject.row(n));
        told = n;
        let how = format!("in pieces of {cuts:?}");
        compare(replays, n, &outcome, &how, findings);
        if n == context.tokens.len() || matches!(outcome, Outcome::Failed(_)) {
            return;
        }
    }
}

/// For the kinds whose state may follow the rows they saw: says if it does, as
/// counting calls instead of tokens looks the same.
pub(super) fn note_splits(subject: &Subject<'_>, contexts: &[Context], findings: &mut Findings) {
    for context in contexts {
        let Context { prompt, tokens, .. } = context;
        let Some(at_once) = subject.at_once(prompt, tokens, findings) else {
            return;
        };
        let Some(mut chain) = subject.open(prompt, findings) else {
            return;
        };
        findings.n_splits += 1;
        let Some(outcome) = subject.by_necessity(&mut chain, tokens, 0) else {
            continue;
        };
        if let Some(difference) = at_once.difference(&outcome, subject.kind) {
            findings.note(&format!(
                "its state follows the rows it saw or the calls it had, not the tokens alone \
                 ({difference}); that is allowed, but mind forced tokens: they come without a call"
            ));
            return;
        }
    }
}
