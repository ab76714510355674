//! What comes next if the text repeats itself: drafts that the model and the
//! chain verify in one step. A draft costs time if it is wrong, and nothing
//! else: no stage sees a token before it is chosen.

use super::TokenId;

/// So many tokens must have stood before in this order.
const N_GRAM: usize = 3;
/// Most tokens of a draft.
const MAX_LEN: usize = 8;
/// Most steps without a draft after drafts that were wrong from the start.
const MAX_PAUSE: u32 = 64;

/// Drafts of one sequence, and how they fared.
#[derive(Debug)]
pub(super) struct Drafter {
    /// How long the next draft may be.
    len: usize,
    /// Steps until the next draft.
    pause: u32,
    /// Drafts in a row that were wrong from the start.
    n_wrong: u32,
    pub(super) n_accepted: usize,
    pub(super) n_rejected: usize,
}

impl Default for Drafter {
    fn default() -> Self {
        Self {
            len: 2,
            pause: 0,
            n_wrong: 0,
            n_accepted: 0,
            n_rejected: 0,
        }
    }
}

impl Drafter {
    /// The tokens that followed the last time the context ended as it does
    /// now, at most `most`.
    pub(super) fn draft<'a>(&mut self, context: &'a [TokenId], most: usize) -> &'a [TokenId] {
        if most == 0 {
            return &[];
        }
        if self.pause > 0 {
            self.pause -= 1;
            return &[];
        }
        let Some(start) = context.len().checked_sub(N_GRAM) else {
            return &[];
        };
        let (earlier, last) = (&context[..context.len() - 1], &context[start..]);
        let Some(found) = earlier.windows(N_GRAM).rposition(|window| window == last) else {
            return &[];
        };
        let following = &context[found + N_GRAM..];
        &following[..following.len().min(most).min(self.len)]
    }

    /// Learns how many tokens of a draft of `len` were right.
    pub(super) fn learn(&mut self, len: usize, accepted: usize) {
        self.n_accepted += accepted;
        self.n_rejected += len - accepted;
        if accepted == len {
            self.len = (2 * self.len).min(MAX_LEN);
        } else {
            self.len = accepted.max(1);
        }
        if accepted == 0 {
            self.n_wrong += 1;
            self.pause = 2_u32.saturating_pow(self.n_wrong).min(MAX_PAUSE);
        } else {
            self.n_wrong = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_what_followed_the_last_time() {
        let mut drafter = Drafter {
            len: 4,
            ..Drafter::default()
        };
        assert_eq!(
            drafter.draft(&[1, 2, 3, 7, 8, 1, 2, 3, 9, 1, 2, 3], 9),
            [9, 1, 2, 3]
        );
        assert_eq!(drafter.draft(&[1, 2, 3, 7, 8, 1, 2, 3], 9), [7, 8, 1, 2]);
        assert_eq!(drafter.draft(&[1, 2, 3, 7, 8, 1, 2, 3], 1), [7]);
        assert_eq!(drafter.draft(&[5, 5, 5, 5], 9), [5]);
        let mut pausing = Drafter {
            pause: 1,
            ..Drafter::default()
        };
        assert!(pausing.draft(&[5, 5, 5, 5], 0).is_empty());
        assert_eq!(pausing.pause, 1, "a step without room is no pause");
        for nothing in [&[][..], &[1, 2], &[1, 2, 3], &[1, 2, 3, 4, 1, 2]] {
            assert!(drafter.draft(nothing, 9).is_empty(), "{nothing:?}");
        }
    }

    #[test]
    fn drafts_grow_while_they_are_right_and_pause_while_they_are_wrong() {
        let mut drafter = Drafter::default();
        let text = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].as_slice(), &[1, 2, 3]].concat();
        for len in [2, 4, 8, 8] {
            let draft = drafter.draft(&text, 99).len();
            assert_eq!(draft, len);
            drafter.learn(draft, draft);
        }
        drafter.learn(7, 3);
        assert_eq!(drafter.draft(&text, 99).len(), 3);
        for pause in [2, 4, 8] {
            drafter.learn(1, 0);
            for _ in 0..pause {
                assert!(drafter.draft(&text, 99).is_empty());
            }
            assert_eq!(drafter.draft(&text, 99), [4]);
        }
        assert_eq!(
            (drafter.n_accepted, drafter.n_rejected),
            (2 + 4 + 8 + 8 + 3, 4 + 3)
        );
    }
}
