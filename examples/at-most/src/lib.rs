//! Bans a token once it has been generated so many times: the smallest plugin
//! with parameters, state and an edit. The same in JavaScript and Python lies in
//! `examples/languages`.

use std::collections::HashMap;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    times: u32,
}

struct AtMost {
    times: u32,
    counts: HashMap<TokenId, u32>,
    used_up: Vec<TokenId>,
}

impl AtMost {
    fn new(times: u32) -> Self {
        Self {
            times,
            counts: HashMap::new(),
            used_up: Vec::new(),
        }
    }

    /// A token was generated.
    fn count(&mut self, id: TokenId) {
        let count = self.counts.entry(id).or_default();
        *count += 1;
        if *count == self.times {
            self.used_up.push(id);
        }
    }
}

impl Plugin for AtMost {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Bans a token once it has been generated so many times.",
            params_schema: include_str!("../schema.json"),
        }
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self::new(params.times))
    }
}

impl TokenProcessor for AtMost {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        for &id in accepted {
            self.count(id);
        }
        edits::deny(&self.used_up);
        Ok(())
    }
}

export!(TokenProcessor for AtMost);

#[cfg(test)]
mod tests {
    use super::AtMost;

    #[test]
    fn a_token_is_used_up_at_its_limit() {
        let mut state = AtMost::new(2);
        for (id, used_up) in [(7, &[][..]), (5, &[]), (7, &[7]), (7, &[7]), (5, &[7, 5])] {
            state.count(id);
            assert_eq!(state.used_up, used_up, "after {id}");
        }
    }
}
