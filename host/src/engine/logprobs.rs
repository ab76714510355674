//! How likely a token was, and what else might have been.

use sluice_kernels::row;

use super::TokenId;

/// Which logprobs a sequence wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogprobOptions {
    /// How many of the most likely tokens to list at each position.
    pub n_top: u32,
    /// Which row they are taken from.
    pub of: LogprobsOf,
    /// Whether the prompt's tokens are wanted too. Always raw: no stage has
    /// seen their rows.
    pub prompt: bool,
}

/// Which row logprobs are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsOf {
    /// The model's own.
    #[default]
    Raw,
    /// The one that the sampler was given, with what every stage before it
    /// changed. A forced position has the model's own.
    Processed,
}

/// The natural logarithms of probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the token that came; negative infinity if it was banned.
    pub logprob: f64,
    /// The most likely tokens, best first, equal ones by ascending id; banned
    /// ones never.
    pub top: Vec<(TokenId, f64)>,
}

/// The log-softmax of `row` for `token` and for the best ids below
/// `tokenizer_size`, with an absolute error below 1e-6. None for a row with a
/// NaN, a positive infinity or nothing left.
pub(super) fn logprobs(
    row: &[f32],
    token: TokenId,
    n_top: u32,
    tokenizer_size: usize,
) -> Option<Logprobs> {
    let (mut maxima, mut room) = (Vec::new(), Vec::new());
    let scanned = row::scan(row, &mut maxima).ok();
    let scanned = scanned.filter(|row| !row.is_banned())?;
    let total = scanned.log_sum_exp(1.0);
    let logprob = |logit: f32| f64::from(logit) - total;
    let (mut ids, mut logits) = (Vec::new(), Vec::new());
    let known = scanned.head(tokenizer_size, &mut room);
    known.top_k(n_top as usize, &mut ids, &mut logits);
    Some(Logprobs {
        logprob: logprob(*row.get(token as usize)?),
        top: ids
            .into_iter()
            .zip(logits.into_iter().map(logprob))
            .collect(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::f64::consts::LN_2;

    const BANNED: f32 = f32::NEG_INFINITY;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn two_equal_logits_are_a_half_each() {
        let found = logprobs(&[0.0, 0.0], 1, 2, 2).unwrap();
        assert!(near(found.logprob, -LN_2));
        let ids: Vec<_> = found.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [0, 1]);
        assert!(found.top.iter().all(|(_, l)| near(*l, -LN_2)));
    }

    #[test]
    fn far_logits_do_not_overflow_and_banned_ones_count_for_nothing() {
        // 3/4 and 1/4: ln 0.75 = -0.287682, ln 0.25 = -1.386294.
        let row = [1000.0, BANNED, 1000.0 - 3f32.ln()];
        let found = logprobs(&row, 2, 20, 3).unwrap();
        assert!((found.logprob + 1.386_294).abs() < 1e-4);
        assert_eq!(found.top.len(), 2);
        assert!((found.top[0].1 + 0.287_682).abs() < 1e-4);
        assert!(logprobs(&row, 1, 0, 3).unwrap().logprob.is_infinite());
    }

    #[test]
    fn padding_is_never_listed() {
        let found = logprobs(&[1.0, 2.0, 9.0], 0, 3, 2).unwrap();
        let ids: Vec<_> = found.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 0]);
    }

    #[test]
    fn a_row_that_is_none_has_no_logprobs() {
        assert_eq!(logprobs(&[f32::NAN, 0.0], 1, 1, 2), None);
        assert_eq!(logprobs(&[f32::INFINITY, 0.0], 1, 1, 2), None);
        assert_eq!(logprobs(&[BANNED; 2], 1, 1, 2), None);
        assert_eq!(logprobs(&[0.0, 0.0], 2, 1, 2), None);
    }
}
