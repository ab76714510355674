//! The last tokens and how often each occurs in them.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
};

use crate::TokenId;

/// Counts of the tokens in a sliding window. A token costs the same however
/// many came before it.
///
/// ```
/// use sluice_plugin::window::Window;
///
/// let mut window = Window::new(3);
/// for id in [7, 5, 7, 7] {
///     window.push(id);
/// }
/// assert_eq!((window.ids(), window.counts()), (&[7, 5][..], &[2, 1][..]));
/// ```
#[derive(Debug, Default)]
pub struct Window {
    /// The tokens in the window, oldest first; unused without a size.
    recent: VecDeque<TokenId>,
    size: Option<usize>,
    ids: Vec<TokenId>,
    counts: Vec<u32>,
    slots: HashMap<TokenId, usize, BuildHasherDefault<IdHasher>>,
}

impl Window {
    /// A window of the last `size` tokens; 0: of all.
    pub fn new(size: u32) -> Self {
        Self {
            size: (size > 0).then_some(size as usize),
            ..Self::default()
        }
    }

    /// Adds the newest token; the oldest leaves a full window.
    pub fn push(&mut self, id: TokenId) {
        let slot = *self.slots.entry(id).or_insert_with(|| {
            self.ids.push(id);
            self.counts.push(0);
            self.ids.len() - 1
        });
        self.counts[slot] += 1;
        let Some(size) = self.size else { return };
        self.recent.push_back(id);
        if self.recent.len() > size
            && let Some(oldest) = self.recent.pop_front()
        {
            self.forget(oldest);
        }
    }

    fn forget(&mut self, id: TokenId) {
        let Some(&slot) = self.slots.get(&id) else {
            return;
        };
        self.counts[slot] -= 1;
        if self.counts[slot] > 0 {
            return;
        }
        self.slots.remove(&id);
        self.ids.swap_remove(slot);
        self.counts.swap_remove(slot);
        if let Some(moved) = self.ids.get(slot) {
            self.slots.insert(*moved, slot);
        }
    }

    /// The distinct tokens, in no particular order.
    pub fn ids(&self) -> &[TokenId] {
        &self.ids
    }

    /// How often each of [`ids`](Self::ids) occurs.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }
}

/// Spreads ids, which are dense, by a multiplication (Fibonacci hashing).
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::{TokenId, Window};

    fn counted(size: u32, tokens: &[TokenId]) -> Vec<(TokenId, u32)> {
        let mut window = Window::new(size);
        for &id in tokens {
            window.push(id);
        }
        let mut counted: Vec<_> = window
            .ids()
            .iter()
            .copied()
            .zip(window.counts().iter().copied())
            .collect();
        counted.sort_unstable();
        counted
    }

    #[test]
    fn counts_everything_without_a_size() {
        assert_eq!(counted(0, &[7, 5, 7, 7]), [(5, 1), (7, 3)]);
    }

    #[test]
    fn counts_the_last_tokens_only() {
        assert_eq!(counted(3, &[7, 5, 7, 7]), [(5, 1), (7, 2)]);
        assert_eq!(counted(2, &[7, 5, 7, 7]), [(7, 2)]);
        assert_eq!(counted(1, &[7, 5, 9]), [(9, 1)]);
        assert_eq!(counted(9, &[7, 5, 9]), [(5, 1), (7, 1), (9, 1)]);
    }

    #[test]
    fn a_token_that_left_can_come_back() {
        assert_eq!(counted(2, &[1, 2, 3, 1]), [(1, 1), (3, 1)]);
    }

    #[test]
    fn nothing_pushed_is_nothing_counted() {
        assert_eq!(counted(0, &[]), [(0, 0); 0]);
    }
}
