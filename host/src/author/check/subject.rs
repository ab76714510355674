//! The plugin under check, and how it is asked.

use std::sync::Arc;

use super::super::AuthorError;
use super::super::outcome::{Outcome, ask};
use super::super::random::Random;
use super::super::vocabulary;
use super::super::workbench::{Stages, Workbench};
use super::finding::Findings;
use crate::engine::TokenId;
use crate::plugin::{Choices, Kind, OpenChain, OpenError, SequenceInfo, Vocabulary};

/// Rows are wide enough for all bytes and some words.
const WIDTH: u32 = 1024;
pub(super) const MAX_TOKENS: u32 = 64;
/// The chance that all runs take.
const SEED: i64 = 7;

pub(super) struct Subject<'a> {
    bench: &'a Workbench,
    vocabulary: Arc<Vocabulary>,
    stages: Stages,
    pub(super) kind: Kind,
    seed: u64,
}

impl<'a> Subject<'a> {
    pub(super) fn new(
        bench: &'a Workbench,
        stages: Stages,
        kind: Kind,
        seed: u64,
    ) -> Result<Self, AuthorError> {
        Ok(Self {
            bench,
            vocabulary: vocabulary::of_text(WIDTH)?,
            stages,
            kind,
            seed,
        })
    }

    pub(super) fn end_id() -> TokenId {
        vocabulary::end_of(WIDTH)
    }

    /// Ids below this have text.
    pub(super) fn n_texts() -> u32 {
        vocabulary::end_of(WIDTH)
    }

    pub(super) fn random(&self, stream: u64) -> Random {
        Random::new(self.seed, stream)
    }

    /// The model's row after so many tokens.
    pub(super) fn row(&self, n_accepted: usize) -> Vec<f32> {
        self.random(1 << 32 | n_accepted as u64).row(WIDTH as usize)
    }

    /// A row on which only `token` is left.
    pub(super) fn only(token: TokenId) -> Vec<f32> {
        let mut row = vec![f32::NEG_INFINITY; WIDTH as usize];
        row[token as usize] = 1.0;
        row
    }

    /// As `open`, for a chain that keeps what its stages did.
    pub(super) fn open_explained(
        &self,
        prompt: &[TokenId],
        findings: &mut Findings,
    ) -> Option<OpenChain> {
        self.open_with(prompt, 1, true, findings)?.pop()
    }

    /// Opens one sequence in a fresh instance. What fails is a finding.
    pub(super) fn open(&self, prompt: &[TokenId], findings: &mut Findings) -> Option<OpenChain> {
        self.open_all(prompt, 1, findings)?.pop()
    }

    /// Opens `n` sequences in one instance, all with the same chance.
    pub(super) fn open_all(
        &self,
        prompt: &[TokenId],
        n: u32,
        findings: &mut Findings,
    ) -> Option<Vec<OpenChain>> {
        self.open_with(prompt, n, false, findings)
    }

    fn open_with(
        &self,
        prompt: &[TokenId],
        n: u32,
        explain: bool,
        findings: &mut Findings,
    ) -> Option<Vec<OpenChain>> {
        let info = SequenceInfo {
            prompt: prompt.to_vec(),
            max_tokens: MAX_TOKENS,
            end_ids: vec![Self::end_id()],
        };
        let choices = Choices {
            n,
            seed: SEED,
            explain,
        };
        match self
            .bench
            .open(&self.vocabulary, &self.stages, &info, choices)
        {
            Ok(mut chains) => {
                for chain in &mut chains {
                    chain.set_chance(SEED, 0);
                }
                Some(chains)
            }
            Err(OpenError::Fault(fault)) => {
                findings.fault(&fault, "as it opens");
                None
            }
            Err(error) => {
                findings.add(
                    "open",
                    &format!("it does not open with these params: {error}"),
                    "give params that it takes with --params, or mend its `open`",
                );
                None
            }
        }
    }

    /// What a fresh instance does that is told everything at once.
    pub(super) fn at_once(
        &self,
        prompt: &[TokenId],
        tokens: &[TokenId],
        findings: &mut Findings,
    ) -> Option<Outcome> {
        let mut chain = self.open(prompt, findings)?;
        Some(ask(&mut chain, tokens, &self.row(tokens.len())))
    }

    /// Brings `chain` to the end of `tokens` by rows that leave nothing else,
    /// under another chance, then asks under the one of all runs.
    pub(super) fn by_necessity(
        &self,
        chain: &mut OpenChain,
        tokens: &[TokenId],
        chance: i64,
    ) -> Option<Outcome> {
        chain.set_chance(chance, 0);
        let mut accepted = None;
        for &token in tokens {
            // It may ban the only token that is left: no history then.
            let Outcome::Chose { .. } = ask(chain, accepted.as_slice(), &Self::only(token)) else {
                return None;
            };
            accepted = Some(token);
        }
        chain.set_chance(SEED, 0);
        Some(ask(chain, accepted.as_slice(), &self.row(tokens.len())))
    }
}
