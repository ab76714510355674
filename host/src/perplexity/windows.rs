//! How a document that is longer than a window is cut.

use std::ops::Range;

/// What a token's probability is conditioned on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// Tokens of a window, at least 2.
    pub(super) window: usize,
    /// Most tokens scored in each window but the first, below `window`; none:
    /// windows have no token in common.
    pub(super) stride: Option<usize>,
}

/// A part of a document that is computed by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) tokens: Range<usize>,
    /// Those of them whose probability counts.
    pub(super) scored: Range<usize>,
}

impl Policy {
    /// The windows of a document of `n` tokens.
    ///
    /// Disjoint windows follow each other; the first token of each is not
    /// scored, having no context. With a stride every token but the first of
    /// the document is scored once: windows end a stride apart, the last at the
    /// document's end, and all but the first reach back as far as a window
    /// allows.
    pub(super) fn windows(self, n: usize) -> Vec<Window> {
        let mut windows = Vec::new();
        let mut end = 0;
        while end < n {
            let window = match self.stride {
                Some(stride) if end > 0 => {
                    let next = (end + stride).min(n);
                    Window {
                        tokens: next.saturating_sub(self.window)..next,
                        scored: end..next,
                    }
                }
                _ => {
                    let next = (end + self.window).min(n);
                    Window {
                        tokens: end..next,
                        scored: end + 1..next,
                    }
                }
            };
            end = window.tokens.end;
            if !window.scored.is_empty() {
                windows.push(window);
            }
        }
        windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn windows(window: usize, stride: Option<usize>, n: usize) -> Vec<[usize; 3]> {
        let policy = Policy { window, stride };
        let windows = policy.windows(n).into_iter();
        windows
            .map(|w| [w.tokens.start, w.scored.start, w.tokens.end])
            .collect()
    }

    #[test]
    fn disjoint_windows_leave_out_their_first_tokens() {
        assert_eq!(windows(4, None, 10), [[0, 1, 4], [4, 5, 8], [8, 9, 10]]);
        // A last token alone has no context.
        assert_eq!(windows(4, None, 9), [[0, 1, 4], [4, 5, 8]]);
        assert!(windows(4, None, 1).is_empty());
        assert!(windows(4, None, 0).is_empty());
    }

    #[test]
    fn a_stride_scores_all_but_the_first_token() {
        assert_eq!(
            windows(4, Some(2), 9),
            [[0, 1, 4], [2, 4, 6], [4, 6, 8], [5, 8, 9]]
        );
        // What evaluation harnesses call rolling windows: one token of context
        // at least, and as much as there is at the end.
        assert_eq!(windows(4, Some(3), 9), [[0, 1, 4], [3, 4, 7], [5, 7, 9]]);
    }

    proptest! {
        #[test]
        fn each_token_is_scored_once_with_context(
            window in 2usize..40,
            stride in prop::option::of(1usize..40),
            n in 0usize..200,
        ) {
            let stride = stride.filter(|stride| *stride < window);
            let mut scored = vec![0; n];
            for w in (Policy { window, stride }).windows(n) {
                prop_assert!(w.tokens.len() <= window);
                prop_assert!(w.tokens.start < w.scored.start);
                prop_assert_eq!(w.scored.end, w.tokens.end);
                scored[w.scored].iter_mut().for_each(|count| *count += 1);
            }
            for (index, count) in scored.into_iter().enumerate() {
                let first = match stride {
                    None => index % window == 0,
                    Some(_) => index == 0,
                };
                prop_assert_eq!(count, usize::from(!first));
            }
        }
    }
}
