//! When a sequence may end.

pub(crate) fn at_most(min_tokens: u32, max_tokens: u32) -> Result<(), String> {
    if min_tokens > max_tokens {
        return Err(format!(
            "min_tokens is {min_tokens}, more than max_tokens, {max_tokens}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::at_most;

    #[test]
    fn min_tokens_may_equal_max_tokens() {
        assert_eq!(at_most(5, 5), Ok(()));
        assert_eq!(
            at_most(6, 5),
            Err("min_tokens is 6, more than max_tokens, 5".into())
        );
    }
}
