//! The k best.

/// How many tokens are kept: the larger of `k` and `min_keep`; none when `k`
/// is 0 or −1, or no smaller than the vocabulary: all.
pub(super) fn limit(k: i64, min_keep: usize, vocabulary_size: usize) -> Option<usize> {
    let k = usize::try_from(k).ok().filter(|&k| k > 0)?;
    Some(k.max(min_keep)).filter(|&limit| limit < vocabulary_size)
}

#[cfg(test)]
mod tests {
    use super::limit;

    #[test]
    fn zero_minus_one_and_the_vocabulary_are_off() {
        assert_eq!(limit(0, 1, 8), None);
        assert_eq!(limit(-1, 1, 8), None);
        assert_eq!(limit(8, 1, 8), None);
        assert_eq!(limit(i64::from(i32::MAX), 1, 8), None);
    }

    #[test]
    fn keeps_the_larger_of_k_and_min_keep() {
        assert_eq!(limit(1, 1, 8), Some(1));
        assert_eq!(limit(2, 5, 8), Some(5));
        assert_eq!(limit(5, 2, 8), Some(5));
    }
}
