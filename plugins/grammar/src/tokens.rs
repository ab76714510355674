//! The vocabulary as the engine needs it.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::toktrie::{
    INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};

use crate::mask::{Masks, Parts, expressions};

/// Opens no byte of UTF-8, and opens special tokens in the engine's tries.
const NO_TEXT: u8 = 0xff;

/// A trie of all tokens' bytes, and what the engine precomputes from it.
pub(crate) struct Tokens {
    factory: ParserFactory,
    parts: Arc<Parts>,
}

impl Tokens {
    /// Token `i` has the bytes `bytes[offsets[i]..offsets[i + 1]]`. Tokens
    /// without bytes, which are special or padding, are in no mask.
    ///
    /// # Errors
    /// When the engine cannot work on this vocabulary.
    pub(crate) fn new(offsets: &[u32], bytes: &[u8]) -> Result<Self, String> {
        let words: Vec<Vec<u8>> = offsets
            .windows(2)
            .map(|pair| bytes[pair[0] as usize..pair[1] as usize].to_vec())
            .map(|word| {
                if word.contains(&NO_TEXT) {
                    Vec::new()
                } else {
                    word
                }
            })
            .collect();
        let info = TokRxInfo::new(words.len() as u32, INVALID_TOKEN);
        let trie = TokTrie::from(&info, &words);
        let parts = Arc::new(Parts::new(&trie));
        let environment: TokEnv = Arc::new(Environment(trie));
        let capabilities = InferenceCapabilities::default();
        let mut factory = ParserFactory::new(&environment, capabilities, &expressions())
            .map_err(|error| error.to_string())?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory, parts })
    }

    /// What finds the masks of a new sequence.
    pub(crate) fn masks(&self) -> Arc<Masks> {
        Arc::new(Masks::new(&self.parts))
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    /// Whether a token stands for text.
    pub(crate) fn has_bytes(&self, id: TokenId) -> bool {
        !self.factory.tok_env().tok_trie().token(id).is_empty()
    }
}

/// The engine's own limits, lowered so that what they let through fits the
/// deadlines: opening takes less than a second, and a mask a few milliseconds
/// of the 50 that the stages of a position share.
fn limits() -> ParserLimits {
    ParserLimits {
        max_grammar_size: 50_000,
        max_items_in_row: 1_000,
        step_lexer_fuel: 50_000,
        step_max_items: 10_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// A vocabulary without its tokenizer: the engine forces no tokens then, and
/// any spelling of the text is allowed.
struct Environment(TokTrie);

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
