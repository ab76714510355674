//! What finished sequences have left in the KV cache, for prompts that begin
//! as they did.

use super::{Model, TokenId};

/// Fewer tokens are computed sooner than shared.
pub(super) const MIN_SHARED: usize = 16;

/// The tokens of a slot that nobody runs in.
struct Kept {
    tokens: Vec<TokenId>,
    slot: u32,
}

/// Slots that are kept, least recently used first.
#[derive(Default)]
pub(super) struct Prefixes {
    kept: Vec<Kept>,
    /// Tokens in all of them.
    n_tokens: usize,
}

/// How many tokens two contexts have in common at their beginning.
pub(super) fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Prefixes {
    /// Tokens in all slots that are kept.
    pub(super) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Keeps a slot that holds `tokens`. What is the beginning of them is
    /// given up.
    pub(super) fn keep(&mut self, tokens: &[TokenId], slot: u32, model: &mut dyn Model) {
        self.give_up(model, |kept| tokens.starts_with(&kept.tokens));
        self.n_tokens += tokens.len();
        self.kept.push(Kept {
            tokens: tokens.to_vec(),
            slot,
        });
    }

    /// Gives up what was used longest ago, until at most `n_tokens` are left.
    pub(super) fn shrink(&mut self, n_tokens: usize, model: &mut dyn Model) {
        let mut excess = self.n_tokens.saturating_sub(n_tokens);
        self.give_up(model, |kept| {
            let goes = excess > 0;
            excess = excess.saturating_sub(kept.tokens.len());
            goes
        });
    }

    fn give_up(&mut self, model: &mut dyn Model, mut goes: impl FnMut(&Kept) -> bool) {
        let n_tokens = &mut self.n_tokens;
        self.kept.retain(|kept| {
            let goes = goes(kept);
            if goes {
                *n_tokens -= kept.tokens.len();
                model.release(kept.slot);
            }
            !goes
        });
    }

    /// The slot with the longest beginning of `tokens`, and its length. It
    /// counts as used.
    pub(super) fn find(&mut self, tokens: &[TokenId]) -> Option<(u32, usize)> {
        let lengths = self.kept.iter().map(|kept| common(&kept.tokens, tokens));
        let (index, length) = lengths.enumerate().max_by_key(|&(_, length)| length)?;
        if length < MIN_SHARED {
            return None;
        }
        let kept = self.kept.remove(index);
        let slot = kept.slot;
        self.kept.push(kept);
        Some((slot, length))
    }

    /// How long the longest beginning of `tokens` is.
    pub(super) fn longest(&self, tokens: &[TokenId]) -> usize {
        let lengths = self.kept.iter().map(|kept| common(&kept.tokens, tokens));
        lengths.max().unwrap_or(0)
    }
}
