//! The calls that a guest is in, and what it may do in them.

use serde::Deserialize;

use crate::TokenId;

/// The call that a guest is in: it decides which imports it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Instantiate,
    Describe,
    Prepare,
    Open,
    Plan,
    Process,
    Sample,
}

impl Phase {
    /// The calls in which the vocabulary may be read.
    pub const VOCABULARY: &[Self] = &[
        Self::Prepare,
        Self::Open,
        Self::Plan,
        Self::Process,
        Self::Sample,
    ];

    /// The function as the contract names it.
    pub fn function(self) -> &'static str {
        match self {
            Self::Instantiate => "instantiation",
            Self::Describe => "describe",
            Self::Prepare => "prepare",
            Self::Open => "open",
            Self::Plan => "plan",
            Self::Process => "process",
            Self::Sample => "sample",
        }
    }

    /// Whether `import`, which is for `allowed` calls, may be used in this one.
    ///
    /// # Errors
    /// The calls in which it may, in words.
    pub fn check(self, import: &str, allowed: &[Self]) -> Result<(), String> {
        if allowed.contains(&self) {
            return Ok(());
        }
        let allowed: Vec<_> = allowed.iter().map(|phase| phase.function()).collect();
        Err(format!(
            "`{import}` may be called in {} only",
            allowed.join(", ")
        ))
    }
}

/// What a token processor decides through `control`; in a case, what it should.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    Force(Vec<TokenId>),
    Stop,
}

#[cfg(test)]
mod tests {
    use super::Phase;

    #[test]
    fn an_import_is_allowed_in_its_calls_alone() {
        let allowed = &[Phase::Plan, Phase::Process];
        assert_eq!(Phase::Plan.check("add", allowed), Ok(()));
        assert_eq!(
            Phase::Sample.check("add", allowed),
            Err("`add` may be called in plan, process only".to_owned())
        );
        assert!(Phase::Describe.check("encode", Phase::VOCABULARY).is_err());
    }
}
