//! Where a text stands in its grammar.

use llguidance::TokenParser;
use llguidance::api::{GrammarInit, StopReason};
use llguidance::toktrie::TokenId;

use crate::source::Source;
use crate::tokens::Tokens;

/// A mask renews what the engine may spend on the lexer; a replay must not run
/// out of it where the text, with a mask for each token, did not.
const TOKENS_PER_MASK: usize = 16;

pub(crate) struct Matcher {
    tokens: &'static Tokens,
    parser: TokenParser,
    end_ids: Vec<TokenId>,
    n_accepted: usize,
    /// Tokens since the last mask.
    n_since_mask: usize,
    /// Why nothing can follow any more: the text has left the grammar.
    left: Option<String>,
}

impl Matcher {
    /// Compiles the grammar.
    ///
    /// # Errors
    /// What the engine cannot honour, for the request's author.
    pub(crate) fn new(
        tokens: &'static Tokens,
        source: &Source,
        end_ids: Vec<TokenId>,
    ) -> Result<Self, String> {
        let factory = tokens.factory();
        let (grammar, lexer) = source.compile(factory)?;
        let mut parser = factory
            .create_parser_from_init_default(GrammarInit::Internal(grammar, lexer))
            .map_err(|error| source.refusal(&error))?;
        parser.bias_computer = tokens.masks();
        parser.start_without_prompt();
        let mut matcher = Self {
            tokens,
            parser,
            end_ids,
            n_accepted: 0,
            n_since_mask: 0,
            left: None,
        };
        // A grammar of no text shows here, and one that is too complex at once.
        matcher.mask().map_err(|error| source.refusal(&error))?;
        Ok(matcher)
    }

    /// Follows the text through these tokens.
    ///
    /// # Errors
    /// When the text no longer fits, now and at every later call.
    pub(crate) fn accept(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        for &id in accepted {
            if let Some(left) = &self.left {
                return Err(left.clone());
            }
            self.n_accepted += 1;
            if !self.tokens.has_bytes(id) {
                continue;
            }
            if self.n_since_mask == TOKENS_PER_MASK {
                self.n_since_mask = 0;
                // What fails here fails the next token.
                let _ = self.parser.compute_mask();
            }
            self.n_since_mask += 1;
            let followed = match self.parser.consume_token(id) {
                // Nothing is ever taken back.
                Ok(0) => Ok(()),
                Ok(_) => Err("the grammar would take text back".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = followed {
                self.left = Some(format!(
                    "the text no longer fits the grammar since token {} of the completion, \
                     id {id}: {error}",
                    self.n_accepted
                ));
            }
        }
        self.left.clone().map_or(Ok(()), Err)
    }

    /// A bit for each token that may come next. The end ids may exactly when
    /// the text is complete.
    ///
    /// # Errors
    /// When the text does not fit, no token can continue it, or finding out
    /// takes too long.
    pub(crate) fn mask(&mut self) -> Result<Vec<u32>, String> {
        self.n_since_mask = 0;
        let is_complete = self.parser.is_accepting();
        let mut mask = match self.parser.compute_mask() {
            Ok(mask) => mask,
            Err(_) if is_complete && self.parser.stop_reason() == StopReason::NoExtensionBias => {
                self.tokens.factory().tok_env().tok_trie().alloc_token_set()
            }
            Err(_) if self.parser.stop_reason() == StopReason::NoExtensionBias => {
                return Err("no token continues the text as the grammar asks".to_owned());
            }
            Err(error) => return Err(format!("the grammar is too complex: {error}")),
        };
        for &id in &self.end_ids {
            if is_complete {
                mask.allow_token(id);
            } else {
                mask.disallow_token(id);
            }
        }
        Ok(mask.as_slice().to_vec())
    }
}
