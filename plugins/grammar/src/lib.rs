//! `grammar`: text that follows a JSON Schema, a regular expression, a list of
//! choices or a Lark grammar, by the engine `llguidance`.
//!
//! ```text
//! prepare ─ tokens (a trie of the vocabulary, kept in a static)
//! open ─ source (schema, regex, choice, lark: refuses what the engine would not honour) ─ matcher
//! plan ─ matcher: accept tokens ─ mask, and the end ids at a complete match
//! ```
//!
//! A token without bytes of its own, such as a special one that another stage
//! forced, leaves the text as it is. A token whose bytes the grammar does not
//! allow ends the sequence with an error.

mod lark;
mod mask;
mod matcher;
mod pattern;
mod schema;
mod source;
mod tokens;

use std::sync::OnceLock;

use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits, export,
    vocabulary,
};

use crate::matcher::Matcher;
use crate::source::Source;
use crate::tokens::Tokens;

/// Made by `prepare`, used by every sequence.
static TOKENS: OnceLock<Result<Tokens, String>> = OnceLock::new();

/// Where one sequence stands in its grammar.
struct Grammar(Matcher);

impl Plugin for Grammar {
    type Params = Source;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "Text that follows a JSON Schema, a regular expression, a list or a grammar.",
        }
    }

    fn prepare() {
        let (offsets, bytes) = vocabulary::all_token_bytes();
        TOKENS.get_or_init(|| Tokens::new(&offsets, &bytes));
    }

    fn open(source: Source, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let tokens = TOKENS
            .get()
            .ok_or_else(|| OpenError::Failed("prepare was not called".to_owned()))?
            .as_ref()
            .map_err(|error| OpenError::Failed(error.clone()))?;
        let matcher = Matcher::new(tokens, &source, sequence.end_ids);
        matcher.map(Self).map_err(OpenError::InvalidParams)
    }
}

impl TokenProcessor for Grammar {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.0.accept(accepted)?;
        edits::mask(&self.0.mask()?);
        Ok(())
    }
}

export!(TokenProcessor for Grammar);

#[cfg(test)]
mod tests;
