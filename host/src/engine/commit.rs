//! What a chosen token means for its sequence.

use super::TokenId;

/// Which of the proposed tokens are emitted, and whether the sequence is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    /// How many of the proposed tokens, from the first, join the context.
    pub emitted: usize,
    pub end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// An end id came. It is neither emitted nor counted.
    Stop,
    /// The last emitted token reached the limit.
    Length,
}

/// Decides emission and finish together. `tokens` are proposed for a sequence
/// that has generated `generated` of at most `max_tokens` tokens. The list is
/// cut at the first end id and at the limit, whichever comes first; an end id
/// at the position of the last allowed token is a stop.
pub(super) fn commit(
    tokens: &[TokenId],
    end_ids: &[TokenId],
    generated: usize,
    max_tokens: usize,
) -> Commit {
    let room = max_tokens.saturating_sub(generated);
    for (emitted, token) in tokens.iter().enumerate() {
        if emitted == room {
            break;
        }
        if end_ids.contains(token) {
            return Commit {
                emitted,
                end: Some(End::Stop),
            };
        }
    }
    let emitted = tokens.len().min(room);
    Commit {
        emitted,
        end: (emitted == room).then_some(End::Length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: [TokenId; 2] = [1, 7];

    fn of(tokens: &[TokenId], generated: usize, max_tokens: usize) -> (usize, Option<End>) {
        let c = commit(tokens, &END, generated, max_tokens);
        (c.emitted, c.end)
    }

    #[test]
    fn a_token_in_the_middle_is_emitted_and_the_sequence_goes_on() {
        assert_eq!(of(&[5], 0, 3), (1, None));
        assert_eq!(of(&[5], 1, 3), (1, None));
    }

    #[test]
    fn an_end_id_is_not_emitted() {
        assert_eq!(of(&[1], 2, 9), (0, Some(End::Stop)));
        assert_eq!(of(&[7], 2, 9), (0, Some(End::Stop)), "each end id counts");
    }

    #[test]
    fn an_end_on_the_first_token_emits_nothing() {
        assert_eq!(of(&[1], 0, 9), (0, Some(End::Stop)));
    }

    #[test]
    fn the_token_that_reaches_the_limit_is_emitted() {
        assert_eq!(of(&[5], 2, 3), (1, Some(End::Length)));
        assert_eq!(of(&[5], 0, 1), (1, Some(End::Length)));
    }

    #[test]
    fn an_end_id_wins_over_the_limit() {
        assert_eq!(of(&[1], 2, 3), (0, Some(End::Stop)));
    }

    #[test]
    fn a_forced_list_is_cut_at_the_end_id_and_at_the_limit() {
        assert_eq!(of(&[5, 6, 1, 8], 0, 9), (2, Some(End::Stop)));
        assert_eq!(of(&[5, 6, 8], 0, 9), (3, None));
        assert_eq!(of(&[5, 6, 8, 9], 1, 3), (2, Some(End::Length)));
        assert_eq!(
            of(&[5, 6, 1], 1, 3),
            (2, Some(End::Length)),
            "the end id lies beyond the limit"
        );
        assert_eq!(of(&[5, 1], 1, 3), (1, Some(End::Stop)));
    }
}
