//! The generated text begins with the given one, in the tokens that the model
//! likes best. The last of them may go further: a client that cuts the end off
//! its prompt and gives it here heals a token that the prompt had split.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    schemars::{self, JsonSchema},
    vocabulary,
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    /// What the generated text begins with.
    #[schemars(length(min = 1, max = 10_000))]
    text: String,
}

struct ForcedPrefix {
    /// What is still to come.
    rest: Vec<u8>,
    /// Token i is `bytes[offsets[i]..offsets[i + 1]]`.
    offsets: Vec<u32>,
    bytes: Vec<u8>,
}

impl ForcedPrefix {
    fn token(&self, id: TokenId) -> &[u8] {
        let [from, to] = [0, 1].map(|i| self.offsets[id as usize + i] as usize);
        &self.bytes[from..to]
    }

    /// The tokens that agree with what is to come.
    fn allowed(&self) -> Vec<TokenId> {
        let ids = 0..self.offsets.len() as TokenId - 1;
        ids.filter(|&id| {
            let token = self.token(id);
            !token.is_empty() && (token.starts_with(&self.rest) || self.rest.starts_with(token))
        })
        .collect()
    }

    /// Takes a token off what is to come; no if it does not agree.
    fn accept(&mut self, id: TokenId) -> bool {
        let token = self.token(id);
        let n = token.len().min(self.rest.len());
        let agrees = token[..n] == self.rest[..n];
        self.rest.drain(..n);
        agrees
    }
}

impl Plugin for ForcedPrefix {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "The text begins with the given one, however it is tokenised.",
        }
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        let (offsets, bytes) = vocabulary::all_token_bytes();
        Ok(Self {
            rest: params.text.into(),
            offsets,
            bytes,
        })
    }
}

impl TokenProcessor for ForcedPrefix {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        for &id in accepted {
            if !self.accept(id) {
                return Err("another stage has forced a token that does not fit the text".into());
            }
        }
        if !self.rest.is_empty() {
            edits::allow(&self.allowed());
        }
        Ok(())
    }
}

export!(TokenProcessor for ForcedPrefix);

#[cfg(test)]
mod tests {
    use super::ForcedPrefix;

    const TOKENS: [&str; 7] = ["", "re", "read", "r", "ad", "ading", "reader"];

    fn prefix(text: &str) -> ForcedPrefix {
        let mut offsets = vec![0];
        for token in TOKENS {
            offsets.push(offsets[offsets.len() - 1] + token.len() as u32);
        }
        ForcedPrefix {
            rest: text.into(),
            offsets,
            bytes: TOKENS.concat().into(),
        }
    }

    #[test]
    fn any_split_is_allowed_and_the_last_token_may_go_further() {
        let mut prefix = prefix("read");
        assert_eq!(prefix.allowed(), [1, 2, 3, 6]);
        assert!(prefix.accept(1));
        assert_eq!(prefix.allowed(), [4, 5]);
        assert!(prefix.accept(5));
        assert!(prefix.rest.is_empty());
        assert!(prefix.accept(0) && prefix.accept(3));
    }

    #[test]
    fn a_token_that_does_not_fit_is_seen() {
        assert!(!prefix("read").accept(4));
        assert!(!prefix("reap").accept(2));
    }
}
