//! The tokens that may come next.
//!
//! The engine finds them by a walk through the trie of the vocabulary, byte by
//! byte. Most tokens are plain text (no quote, backslash or control character),
//! and inside a string most of those are allowed, so that walk is long. But as
//! long as no token leaves the lexeme that the text is in, which of them are
//! allowed depends on the state of the lexer alone: it is found once per state,
//! by regular expressions where one tells of many tokens at once, and by the
//! walk for the rest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};

/// Most bytes of what is remembered for a sequence: 85 states of the lexer for a
/// vocabulary of 50,000, 16 for one of 262,144.
const MOST_BYTES: usize = 512 << 10;

/// What the engine may spend to find whether an expression holds of a state.
const EXPRESSION_BUDGET: u64 = 1000;

/// Most characters of the plain tokens that an expression tells of together;
/// none is all of them.
const LENGTHS: [Option<usize>; 3] = [None, Some(16), Some(10)];

/// The plain tokens up to some length: when their expression holds, all of them
/// are allowed.
struct Short {
    ids: SimpleVob,
    longer: TokTrie,
}

/// The vocabulary, parted.
pub(crate) struct Parts {
    all: TokTrie,
    plain: TokTrie,
    others: TokTrie,
    /// In the order of [`expressions`].
    short: Vec<Short>,
}

/// Regular expressions of plain tokens, for the engine.
pub(crate) fn expressions() -> Vec<String> {
    let of = |length: Option<usize>| match length {
        Some(length) => format!(r#"[^"\\\x00-\x1F\x7F]{{1,{length}}}"#),
        None => r#"[^"\\\x00-\x1F\x7F]+"#.to_owned(),
    };
    LENGTHS.map(of).into()
}

/// The number of characters, if they are all plain.
fn plain_length(bytes: &[u8]) -> Option<usize> {
    let text = str::from_utf8(bytes).ok()?;
    let is_plain = |c: char| !matches!(c, '"' | '\\' | '\0'..='\x1f' | '\x7f');
    (!text.is_empty() && text.chars().all(is_plain)).then(|| text.chars().count())
}

impl Parts {
    pub(crate) fn new(all: &TokTrie) -> Self {
        let mut plain = all.alloc_token_set();
        let mut others = all.alloc_token_set();
        let mut short = LENGTHS.map(|_| all.alloc_token_set());
        for id in 0..all.vocab_size() as u32 {
            let Some(length) = plain_length(all.token(id)) else {
                others.allow_token(id);
                continue;
            };
            plain.allow_token(id);
            for (ids, most) in short.iter_mut().zip(LENGTHS) {
                if most.is_none_or(|most| length <= most) {
                    ids.allow_token(id);
                }
            }
        }
        let short = short.map(|ids| {
            let mut longer = plain.clone();
            longer.sub(&ids);
            let longer = all.filter(&longer);
            Short { ids, longer }
        });
        Self {
            all: all.clone(),
            plain: all.filter(&plain),
            others: all.filter(&others),
            short: short.into(),
        }
    }

    /// The plain tokens that may follow, if none of those that may leaves the
    /// lexeme.
    fn plain(&self, parser: &mut ParserRecognizer<'_>, state: StateID) -> Option<SimpleVob> {
        let (mut ids, rest) = self.all_of_some_length(parser, state).map_or_else(
            || (self.all.alloc_token_set(), &self.plain),
            |short| (short.ids.clone(), &short.longer),
        );
        let mut lexeme = Lexeme {
            n_rows: n_rows(parser),
            parser,
            was_left: false,
        };
        rest.add_bias(&mut lexeme, &mut ids, &[]);
        (!lexeme.was_left).then_some(ids)
    }

    fn all_of_some_length(
        &self,
        parser: &mut ParserRecognizer<'_>,
        state: StateID,
    ) -> Option<&Short> {
        let lexer = parser.lexer_mut();
        if !lexer.subsume_possible(state) {
            return None;
        }
        let mut expressions = self.short.iter().enumerate();
        let holds = |&(index, _): &(usize, _)| {
            lexer
                .check_subsume(state, index, EXPRESSION_BUDGET, None)
                .unwrap_or(false)
        };
        expressions.find(holds).map(|(_, short)| short)
    }
}

/// How often a lexeme ended, in any walk.
fn n_rows(parser: &mut ParserRecognizer<'_>) -> usize {
    let stats = parser.stats_mut();
    stats.rows + stats.cached_rows
}

/// A parser that stays in its lexeme.
struct Lexeme<'a, 'p> {
    parser: &'a mut ParserRecognizer<'p>,
    /// How often a lexeme had ended before.
    n_rows: usize,
    /// A byte could have ended it.
    was_left: bool,
}

impl Recognizer for Lexeme<'_, '_> {
    fn pop_bytes(&mut self, num: usize) {
        self.parser.pop_bytes(num);
    }

    fn collapse(&mut self) {
        self.parser.collapse();
    }

    fn trie_started(&mut self, label: &str) {
        self.parser.trie_started(label);
    }

    fn trie_finished(&mut self) {
        self.parser.trie_finished();
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        if self.was_left {
            return false;
        }
        let state = self.parser.lexer_state();
        if self.parser.try_push_byte(byte) {
            self.was_left = n_rows(self.parser) != self.n_rows;
            if self.was_left {
                self.parser.pop_bytes(1);
            }
            return !self.was_left;
        }
        let lexer = self.parser.lexer_mut();
        self.was_left = !lexer.advance(state, byte, false, &None).is_error();
        false
    }

    fn save_stats(&mut self, nodes_walked: usize) {
        self.parser.save_stats(nodes_walked);
    }
}

/// The masks of one sequence.
pub(crate) struct Masks {
    parts: Arc<Parts>,
    /// By state of the lexer, the plain tokens that may follow; none where
    /// the parser has to be asked.
    plain: Mutex<HashMap<StateID, Option<SimpleVob>>>,
}

impl Masks {
    pub(crate) fn new(parts: &Arc<Parts>) -> Self {
        Self {
            parts: parts.clone(),
            plain: Mutex::default(),
        }
    }
}

impl BiasComputer for Masks {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let state = parser.lexer_state();
        let mut known = self.plain.lock().unwrap_or_else(PoisonError::into_inner);
        if start.is_empty() && !known.contains_key(&state) {
            let plain = self.parts.plain(parser, state);
            let mask_bytes = self.parts.all.vocab_size().div_ceil(8);
            if known.len() * mask_bytes >= MOST_BYTES {
                known.clear();
            }
            known.insert(state, plain);
        }
        let plain = start.is_empty().then(|| known.get(&state)).flatten();
        if let Some(Some(plain)) = plain {
            let mut mask = plain.clone();
            self.parts.others.add_bias(parser, &mut mask, &[]);
            mask
        } else {
            let mut mask = self.parts.all.alloc_token_set();
            self.parts.all.add_bias(parser, &mut mask, start);
            mask
        }
    }

    fn trie(&self) -> &TokTrie {
        &self.parts.all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use llguidance::TokenParser;
    use llguidance::api::GrammarInit;
    use llguidance::earley::SlicedBiasComputer;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::source::Source;
    use crate::tokens::Tokens;

    /// All bytes, and words of one to 24 characters, plain and not.
    fn tokens() -> &'static Tokens {
        static TOKENS: OnceLock<Tokens> = OnceLock::new();
        TOKENS.get_or_init(|| {
            let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
            for length in 2..25 {
                words.push("abcdefghijklmnopqrstuvwxyz".as_bytes()[..length].to_vec());
                words.push("é".repeat(length).into_bytes());
                words.push("1".repeat(length).into_bytes());
                words.push([&b" "[..], &"n".repeat(length).into_bytes()].concat());
            }
            for word in [
                "\",", "\":", "\"}", "\": \"", "\", \"", "{\"", "},", " {", "[\"", "a\"", "abc\"]",
                "ab\\n", "\\\"", "a\nb", "ab ba", "true", "null", "12.5", "1, 2", "ab.",
            ] {
                words.push(word.into());
            }
            let mut offsets = vec![0];
            offsets.extend(words.iter().scan(0, |end, word| {
                *end += word.len() as u32;
                Some(*end)
            }));
            Tokens::new(&offsets, &words.concat()).expect("a vocabulary")
        })
    }

    fn grammars() -> [Value; 8] {
        let text = |schema: Value| json!({ "json_schema": schema });
        [
            text(json!({"type": "string"})),
            text(json!({"type": "string", "maxLength": 18})),
            text(json!({"type": "string", "minLength": 3, "maxLength": 7})),
            text(json!({"type": "string", "pattern": "^[a-d]{2,12}$"})),
            text(json!({"type": "array", "items": {"anyOf": [
                {"type": "integer"}, {"type": "string", "maxLength": 4}, {"const": "abc"},
            ]}})),
            json!({"regex": "([a-f]{1,5} ?)+[.]"}),
            json!({"lark": "start: WORD (\" \" WORD)* \".\"\nWORD: /[a-zé]{1,11}/"}),
            json!({"choice": ["abc", "abcdef", "é", "éé a"]}),
        ]
    }

    fn parser(params: Value) -> TokenParser {
        let source: Source = serde_json::from_value(params).expect("parameters");
        let factory = tokens().factory();
        let (grammar, lexer) = source.compile(factory).expect("a grammar");
        let mut parser = factory
            .create_parser_from_init_default(GrammarInit::Internal(grammar, lexer))
            .expect("a parser");
        parser.start_without_prompt();
        parser
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// The engine's own way to find a mask asks the parser for all tokens.
        #[test]
        fn masks_are_those_of_the_engine(
            grammar in 0..grammars().len(),
            choices in prop::collection::vec(any::<prop::sample::Index>(), 1..30),
        ) {
            let params = grammars()[grammar].clone();
            let (mut ours, mut engines) = (parser(params.clone()), parser(params));
            ours.bias_computer = tokens().masks();
            let environment = tokens().factory().tok_env();
            engines.bias_computer =
                Arc::new(SlicedBiasComputer::new(environment, &[]).expect("no expressions"));
            for choice in choices {
                let Ok(expected) = engines.compute_mask() else {
                    prop_assert!(ours.compute_mask().is_err());
                    break;
                };
                let mask = ours.compute_mask().expect("a mask");
                prop_assert_eq!(mask.to_list(), expected.to_list());
                let id = *choice.get(&expected.to_list());
                prop_assert_eq!(engines.consume_token(id).expect("allowed"), 0);
                prop_assert_eq!(ours.consume_token(id).expect("allowed"), 0);
            }
        }
    }
}
