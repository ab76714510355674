//! Regular expressions that the engine can follow.

use llguidance::regex_to_lark;
use regex_syntax::hir::Look;

/// The classes that are ASCII, as in JSON Schema's dialect: `\d` and `\w`.
pub(crate) const ASCII: &str = "dw";

/// Whether the engine can follow a regular expression.
///
/// # Errors
/// What it cannot, such as look-around.
pub(crate) fn check(pattern: &str) -> Result<(), String> {
    let parsed = regex_syntax::parse(&regex_to_lark(pattern, ASCII));
    let hir = parsed.map_err(|error| match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        other => other.to_string(),
    })?;
    // What stands at the ends is checked by the engine.
    let supported = |look| matches!(look, Look::Start | Look::End);
    match hir
        .properties()
        .look_set()
        .iter()
        .find(|&look| !supported(look))
    {
        None => Ok(()),
        Some(Look::StartLF | Look::EndLF | Look::StartCRLF | Look::EndCRLF) => {
            Err("line anchors are not supported".to_owned())
        }
        Some(_) => Err("word boundaries are not supported".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_needs_to_look_around_is_refused() {
        for (pattern, words) in [
            ("(?=a)b", "look-around"),
            ("a(?!b)", "look-around"),
            ("(?<=a)b", "look-around"),
            (r"\bword", "word boundaries"),
            (r"a\B", "word boundaries"),
            (r"(a)\1", "backreferences"),
            ("(?m)^a$", "line anchors"),
            ("(", "unclosed group"),
        ] {
            let error = check(pattern).expect_err(pattern);
            assert!(error.contains(words), "{pattern}: {error}");
        }
    }

    #[test]
    fn what_a_finite_automaton_can_is_not() {
        for pattern in [
            "^[a-z]{2,5}$",
            r"\d+(\.\d+)?",
            "a|b",
            r"^\$",
            "(?i)yes|no",
            r"\p{L}+",
            "a/b",
        ] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }
}
