//! The shipped `grammar`: which tokens may come next, through the component.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use sluice::engine::{Chain, ModelInfo, Plan, TokenId};
use sluice::plugin::{OpenError, SequenceInfo, Vocabulary};

use crate::support::{ONE, on_guest_thread, runtime, stage};

/// Words of a vocabulary; after them comes padding.
const WORDS: [&str; 20] = [
    "<end>", "<pad>", "a", "b", "ab", "abc", "c", "\"", "{\"", "}", "\": ", ", ", "1", "12", "-",
    "true", "null", "[", "]", ";",
];
const N_SPECIAL: usize = 2;
const END: TokenId = 0;
const SPECIAL: TokenId = 1;
/// Stands for text, but ends this request's sequences.
const STOP: TokenId = 19;
const VOCABULARY_SIZE: u32 = 32;

fn vocabulary() -> Arc<Vocabulary> {
    let info = ModelInfo {
        vocabulary_size: VOCABULARY_SIZE,
        tokenizer_size: WORDS.len() as u32,
        end_of_sequence: vec![END],
        context_length: 128,
    };
    let bytes = WORDS[N_SPECIAL..].concat().into_bytes();
    let mut offsets = vec![0; N_SPECIAL + 1];
    for word in &WORDS[N_SPECIAL..] {
        offsets.push(offsets[offsets.len() - 1] + word.len() as u32);
    }
    offsets.resize(VOCABULARY_SIZE as usize + 1, bytes.len() as u32);
    let special = (0..)
        .zip(&WORDS[..N_SPECIAL])
        .map(|(id, &name)| (id, name.to_owned()));
    let encode = Box::new(|_: &str| Vec::new());
    Arc::new(Vocabulary::new(info, offsets, bytes, special.collect(), encode).unwrap())
}

fn open(params: Value) -> Result<Box<dyn Chain>, OpenError> {
    let stages = [
        stage("grammar", params),
        stage("sampler", json!({"temperature": 0})),
    ];
    let info = SequenceInfo {
        prompt: vec![2],
        max_tokens: 64,
        end_ids: vec![END, STOP],
    };
    let mut chains = runtime().open(&vocabulary(), &stages, &info, ONE)?;
    Ok(Box::new(chains.remove(0)))
}

/// The ids that the grammar leaves once it has seen these tokens.
fn allowed(chain: &mut dyn Chain, accepted: &[TokenId]) -> Vec<TokenId> {
    assert_eq!(chain.plan(accepted).unwrap(), Plan::Sample);
    let mut row = vec![0.0; VOCABULARY_SIZE as usize];
    chain.finish_values(&mut row).unwrap();
    let left = |id: &TokenId| row[*id as usize] == 0.0;
    (0..VOCABULARY_SIZE).filter(left).collect()
}

fn id(word: &str) -> TokenId {
    WORDS.iter().position(|other| *other == word).unwrap() as TokenId
}

/// The words that may follow each of these in turn.
fn walk(params: &Value, steps: &[(&[&str], &[&str])]) {
    let mut chain = open(params.clone()).unwrap();
    for (accepted, next) in steps {
        let accepted: Vec<_> = accepted.iter().map(|word| id(word)).collect();
        let left: Vec<_> = allowed(&mut *chain, &accepted)
            .into_iter()
            .map(|id| WORDS[id as usize])
            .collect();
        assert_eq!(left, *next, "{params} after {accepted:?}");
    }
}

#[test]
fn only_what_the_grammar_allows_is_left() {
    on_guest_thread(|| {
        walk(
            &json!({"choice": ["ab", "abcb"]}),
            &[
                (&[], &["a", "ab", "abc"]),
                (&["a"], &["b"]),
                // Complete, and able to go on.
                (&["b"], &["<end>", "c", ";"]),
                (&["c"], &["b"]),
                (&["b"], &["<end>", ";"]),
            ],
        );
        walk(
            &json!({"regex": "(ab)+c?;?"}),
            &[
                (&[], &["a", "ab", "abc"]),
                (&["ab"], &["<end>", "a", "ab", "abc", "c", ";"]),
                (&["abc"], &["<end>", ";"]),
            ],
        );
        walk(
            &json!({"lark": "start: \"a\" start \"b\" | \"c\""}),
            &[
                (&[], &["a", "c"]),
                (&["a", "a", "c"], &["b"]),
                (&["b"], &["b"]),
                (&["b"], &["<end>", ";"]),
            ],
        );
        let schema = json!({
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": -1, "maximum": 12},
                "b": {"type": "array", "items": {"enum": [true, null]}, "maxItems": 2},
            },
            "required": ["a"],
            "additionalProperties": false,
        });
        walk(
            &json!({"json_schema": schema}),
            &[
                (&[], &["{\""]),
                (&["{\""], &["a"]),
                (&["a", "\": "], &["1", "12", "-"]),
                (&["1"], &["}", ", ", "1"]),
                (&[", ", "\"", "b", "\": "], &["["]),
                (&["["], &["true", "null", "]"]),
                (&["true"], &[", ", "]"]),
                (&[", ", "null"], &["]"]),
                (&["]"], &["}"]),
                (&["}"], &["<end>", ";"]),
            ],
        );
    });
}

#[test]
fn a_forced_token_of_no_text_changes_nothing_and_another_ends_the_sequence() {
    on_guest_thread(|| {
        let mut chain = open(json!({"choice": ["abb"]})).unwrap();
        assert_eq!(
            allowed(&mut *chain, &[SPECIAL, id("ab"), SPECIAL]),
            [id("b")]
        );
        for accepted in [&[id("c")][..], &[id("b")]] {
            let fault = chain.plan(accepted).unwrap_err();
            assert_eq!((fault.stage.as_str(), fault.kind), ("grammar", "error"));
            assert!(
                fault
                    .message
                    .contains("no longer fits the grammar since token 4"),
                "{fault}"
            );
        }
    });
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    on_guest_thread(|| {
        let string = |keyword: &str, value: Value| json!({"type": "string", keyword: value});
        let schemas = [
            (
                json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
                "`oneOf`",
            ),
            (
                json!({"oneOf": [{"minLength": 1}, {"maxLength": 9}]}),
                "`oneOf`",
            ),
            (json!({"not": {"type": "string"}}), "`not`"),
            (json!({"if": true, "then": {"type": "null"}}), "`if`"),
            (json!({"type": "array", "then": true}), "`then`"),
            (json!({"type": "array", "else": true}), "`else`"),
            (
                json!({"type": "array", "uniqueItems": true}),
                "`uniqueItems`",
            ),
            (json!({"type": "array", "contains": true}), "`contains`"),
            (
                json!({"type": "object", "propertyNames": true}),
                "`propertyNames`",
            ),
            (
                json!({"type": "object", "dependentRequired": {}}),
                "`dependentRequired`",
            ),
            (
                json!({"type": "object", "unevaluatedProperties": false}),
                "`unevaluatedProperties`",
            ),
            (
                string("pattern", json!("a(?=b)")),
                "`pattern` at #: look-around",
            ),
            (
                string("pattern", json!("\\bword")),
                "`pattern` at #: word boundaries",
            ),
            (string("format", json!("phone")), "`format` at #: \"phone\""),
            (string("maxLenght", json!(3)), "`maxLenght`"),
            (string("nullable", json!(true)), "`nullable`"),
            (
                json!({"$ref": "#/$defs/missing"}),
                "`$ref` at #: \"#/$defs/missing\" leads to no schema",
            ),
            (
                json!({"$ref": "https://example.com/x"}),
                "`$ref` at #: \"https://example.com/x\" is outside",
            ),
            (json!({"$dynamicRef": "#x"}), "`$dynamicRef`"),
            (json!(false), "false"),
        ];
        let others = [
            (json!({"regex": "(?<!a)b"}), "regex: look-around"),
            (json!({"regex": "(a"}), "regex: unclosed group"),
            (json!({"lark": "start: missing"}), "missing"),
            (json!({"lark": "start: <|im_end|>"}), "special tokens"),
            (json!({"lark": "start: %json {}"}), "`%json`"),
        ];
        let schemas = schemas.map(|(schema, words)| (json!({"json_schema": schema}), words));
        for (params, words) in schemas.into_iter().chain(others) {
            match open(params.clone()) {
                Err(OpenError::InvalidParams { stage, message }) => {
                    assert_eq!(stage, "grammar");
                    assert!(message.contains(words), "{params}: {message}");
                }
                Err(error) => panic!("{params}: {error}"),
                Ok(_) => panic!("{params} was taken"),
            }
        }
    });
}

#[test]
fn one_source_is_given() {
    let plugin = stage("grammar", json!({"regex": "a"})).plugin;
    for params in [
        json!({}),
        json!({"regex": "a", "choice": ["a"]}),
        json!({"regex": ""}),
        json!({"choice": []}),
        json!({"choice": [""]}),
        json!({"json_schema": null}),
        json!({"grammar": "a"}),
    ] {
        assert!(plugin.validate_params(&params).is_err(), "{params}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The component leaves the same after a replay as after each token.
    #[test]
    fn a_replay_leaves_the_same(
        grammar in 0..4_usize,
        draws in prop::collection::vec(any::<u16>(), 1..16),
        cuts in prop::collection::vec(any::<bool>(), 16),
    ) {
        let params = [
            json!({"regex": "(ab|a|c)*(12|1)?"}),
            json!({"choice": ["abcab", "abc", "aab", "ab;ab"]}),
            json!({"lark": "start: (A | b)* \"}\"\nA: /a+/\nb: \"[\" start | \"-\""}),
            json!({"json_schema": {"$ref": "#/$defs/t", "$defs": {"t": {
                "type": "array", "items": {"anyOf": [{"$ref": "#/$defs/t"}, {"enum": [1, true, "ab"]}]},
            }}}}),
        ][grammar].clone();
        on_guest_thread(move || {
            let mut steps = open(params.clone()).unwrap();
            let mut groups = open(params.clone()).unwrap();
            let mut text = Vec::new();
            let mut left = allowed(&mut *steps, &[]);
            let mut start = 0;
            for (draw, cut) in draws.into_iter().zip(cuts) {
                left.retain(|id| ![END, STOP].contains(id));
                if left.is_empty() {
                    break;
                }
                text.push(left[draw as usize % left.len()]);
                left = allowed(&mut *steps, &text[text.len() - 1..]);
                if cut {
                    assert_eq!(allowed(&mut *groups, &text[start..]), left, "{params} {text:?}");
                    start = text.len();
                }
                let mut replay = open(params.clone()).unwrap();
                assert_eq!(allowed(&mut *replay, &text), left, "{params} {text:?}");
            }
        });
    }
}
