use std::sync::OnceLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use sluice_plugin::{TokenId, testing::Setup};

use crate::Grammar;
use crate::matcher::Matcher;
use crate::source::Source;
use crate::tokens::Tokens;

/// Ends a sequence, and stands for no text.
const END: TokenId = 0;
/// Ends this request's sequences, and stands for text as well.
const STOP: TokenId = 1;
/// Stands for no text: a special token, or padding.
const SPECIAL: TokenId = 2;

const WORDS: [&str; 25] = [
    "", ";", "", "a", "b", "ab", "abc", "c", "\"", "{", "}", "{\"", "\": ", ", ", "1", "2", "12",
    ".", "true", "null", "[", "]", "-", "\"a\"", ": ",
];

fn tokens() -> &'static Tokens {
    static TOKENS: OnceLock<Tokens> = OnceLock::new();
    TOKENS.get_or_init(|| {
        let mut offsets = vec![0];
        for word in WORDS {
            offsets.push(offsets[offsets.len() - 1] + word.len() as u32);
        }
        Tokens::new(&offsets, WORDS.concat().as_bytes()).expect("a vocabulary")
    })
}

fn source(params: Value) -> Source {
    serde_json::from_value(params).expect("parameters")
}

fn open(params: Value) -> Result<Matcher, String> {
    Matcher::new(tokens(), &source(params), vec![END, STOP])
}

fn opened(params: Value) -> Matcher {
    open(params).expect("a grammar that is honoured")
}

/// The ids whose bits are 1.
fn ids(mask: &[u32]) -> Vec<TokenId> {
    (0..WORDS.len() as u32)
        .filter(|&id| mask[id as usize / 32] >> (id % 32) & 1 == 1)
        .collect()
}

fn id(word: &str) -> TokenId {
    let id = WORDS.iter().position(|other| *other == word);
    id.expect(word) as u32
}

/// What may follow, as words; an end id as its name.
fn next(matcher: &mut Matcher) -> Vec<&'static str> {
    let name = |id: TokenId| match id {
        END => "END",
        STOP => "STOP",
        SPECIAL => "SPECIAL",
        id => WORDS[id as usize],
    };
    ids(&matcher.mask().expect("a mask"))
        .into_iter()
        .map(name)
        .collect()
}

fn follow(matcher: &mut Matcher, words: &[&str]) -> Vec<&'static str> {
    let accepted: Vec<_> = words.iter().map(|word| id(word)).collect();
    matcher.accept(&accepted).expect("words that fit");
    next(matcher)
}

#[test]
fn a_choice_may_be_spelt_in_any_tokens() {
    let choice = json!({"choice": ["ab", "abcc", "b.a"]});
    let mut matcher = opened(choice.clone());
    assert_eq!(next(&mut matcher), ["a", "b", "ab", "abc"]);
    assert_eq!(follow(&mut matcher, &["a"]), ["b"]);
    // One choice is complete, another goes on.
    assert_eq!(follow(&mut matcher, &["b"]), ["END", "STOP", "c"]);
    assert_eq!(follow(&mut matcher, &["c"]), ["c"]);
    assert_eq!(follow(&mut matcher, &["c"]), ["END", "STOP"]);
    // A full stop is itself, not any character.
    assert_eq!(follow(&mut opened(choice), &["b"]), ["."]);
}

#[test]
fn a_regex_covers_the_whole_text() {
    let mut matcher = opened(json!({"regex": "a+b?"}));
    assert_eq!(next(&mut matcher), ["a", "ab"]);
    assert_eq!(
        follow(&mut matcher, &["a"]),
        ["END", "STOP", "a", "b", "ab"]
    );
    assert_eq!(follow(&mut matcher, &["ab"]), ["END", "STOP"]);
    // Anchors at its ends say nothing new.
    let mut anchored = opened(json!({"regex": "^a|b$"}));
    assert_eq!(next(&mut anchored), ["a", "b"]);
    assert_eq!(follow(&mut anchored, &["b"]), ["END", "STOP"]);
    // An empty text can be complete.
    assert_eq!(
        next(&mut opened(json!({"regex": "1*"}))),
        ["END", "STOP", "1"]
    );
    assert_eq!(next(&mut opened(json!({"regex": r"\d"}))), ["1", "2"]);
    assert_eq!(next(&mut opened(json!({"regex": "[^a]/"}))).len(), 11);
}

#[test]
fn a_stop_id_with_text_is_no_text() {
    // The semicolon would fit, but ends the sequence before it is shown.
    let mut matcher = opened(json!({"regex": "a;?b?"}));
    assert_eq!(next(&mut matcher), ["a", "ab"]);
    assert_eq!(follow(&mut matcher, &["a"]), ["END", "STOP", "b"]);
}

#[test]
fn a_lark_grammar_nests() {
    let mut matcher = opened(json!({"lark": "start: \"a\" start \"b\" | \"c\""}));
    assert_eq!(next(&mut matcher), ["a", "c"]);
    assert_eq!(follow(&mut matcher, &["a"]), ["a", "c"]);
    assert_eq!(follow(&mut matcher, &["a", "c"]), ["b"]);
    assert_eq!(follow(&mut matcher, &["b"]), ["b"]);
    assert_eq!(follow(&mut matcher, &["b"]), ["END", "STOP"]);
}

#[test]
fn json_follows_its_schema_on_one_line() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"enum": [1, 12, "b"]}, "b": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": false,
    });
    let mut matcher = opened(json!({"json_schema": schema}));
    assert_eq!(next(&mut matcher), ["{", "{\""]);
    assert_eq!(follow(&mut matcher, &["{\"", "a"]), ["\"", "\": "]);
    assert_eq!(follow(&mut matcher, &["\": "]), ["\"", "1", "12"]);
    assert_eq!(follow(&mut matcher, &["1"]), ["}", ", ", "2"]);
    assert_eq!(follow(&mut matcher, &[", "]), ["\""]);
    assert_eq!(follow(&mut matcher, &["\"", "b", "\": ", "true"]), ["}"]);
    assert_eq!(follow(&mut matcher, &["}"]), ["END", "STOP"]);
    let any = next(&mut opened(json!({"json_schema": true})));
    assert_eq!(
        any,
        [
            "\"", "{", "{\"", "\": ", "1", "2", "12", "true", "null", "[", "-", "\"a\""
        ]
    );
}

#[test]
fn tokens_without_text_change_nothing() {
    let mut matcher = opened(json!({"choice": ["ab"]}));
    matcher.accept(&[SPECIAL, id("a"), SPECIAL]).expect("fits");
    assert_eq!(next(&mut matcher), ["b"]);
}

#[test]
fn a_text_that_left_the_grammar_stays_out() {
    for forced in [id("c"), STOP, 999] {
        let mut matcher = opened(json!({"choice": ["ab"]}));
        matcher.accept(&[id("a")]).expect("fits");
        let first = matcher.accept(&[forced]);
        if forced == 999 {
            // An id without text.
            assert_eq!(first, Ok(()));
            continue;
        }
        let error = first.expect_err("does not fit");
        assert!(
            error.contains("no longer fits the grammar since token 2"),
            "{error}"
        );
        assert_eq!(matcher.accept(&[id("b")]), Err(error));
    }
    let mut matcher = opened(json!({"choice": ["ab"]}));
    assert!(matcher.accept(&[id("ab"), id("c")]).is_err());
}

#[test]
fn a_text_that_no_token_continues_is_an_error() {
    let mut matcher = opened(json!({"choice": ["az"]}));
    matcher.accept(&[id("a")]).expect("fits");
    let error = matcher.mask().expect_err("there is no z");
    assert!(error.contains("no token continues the text"), "{error}");
}

#[test]
fn what_the_engine_cannot_honour_is_named() {
    let refused = [
        (json!({"regex": "a(?=b)"}), "regex: look-around"),
        (json!({"regex": "a^b"}), "regex: "),
        (json!({"lark": "start: %json {}"}), "lark: `%json`"),
        (json!({"lark": "start: other"}), "lark: "),
        (json!({"lark": "start: <[0]>"}), "special token"),
        (json!({"lark": "start: <|im_end|>"}), "special"),
        (json!({"lark": "start: a\na[stop=\"b\"]: /a+/"}), "`stop`"),
        (
            json!({"lark": "start: a\na[max_tokens=3]: /a+/"}),
            "`max_tokens`",
        ),
        (
            json!({"lark": "start: a\na[temperature=0.5]: /a+/"}),
            "`temperature`",
        ),
        (json!({"lark": "start: /(?!a)b/"}), "lark: "),
        (
            json!({"json_schema": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}),
            "json_schema: `oneOf` is supported only where",
        ),
        (
            json!({"json_schema": {"type": "string", "pattern": "a^b"}}),
            "json_schema: ",
        ),
        (
            json!({"json_schema": {"type": "string", "minLength": 3, "maxLength": 2}}),
            "minLength (3) is greater than maxLength (2)",
        ),
        (
            json!({"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}}),
            "json_schema: ",
        ),
        (
            json!({"json_schema": {"properties": {"a": true, "b": true}, "maxProperties": 1}}),
            "min/maxProperties",
        ),
    ];
    for (params, words) in refused {
        let error = open(params.clone())
            .err()
            .unwrap_or_else(|| panic!("{params}"));
        assert!(error.contains(words), "{params}: {error}");
        assert!(
            !error.contains('\u{1b}') && !error.contains("non-verbose"),
            "{error}"
        );
    }
}

#[test]
fn one_of_with_different_constants_is_honoured() {
    let cat = json!({"properties": {"a": {"const": "b"}}, "required": ["a"], "additionalProperties": false});
    let dog = json!({"properties": {"a": {"const": "c"}}, "required": ["a"], "additionalProperties": false});
    let schema = json!({
        "type": "object",
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {"cat": cat, "dog": dog},
    });
    let mut matcher = opened(json!({"json_schema": schema}));
    assert_eq!(
        follow(&mut matcher, &["{\"", "a", "\": ", "\""]),
        ["b", "c"]
    );
}

#[test]
fn a_long_replay_spends_no_more_than_the_text_did() {
    let params = json!({"regex": "(a?){300}a{300}"});
    let mut steps = opened(params.clone());
    let text = vec![id("a"); 400];
    for token in &text {
        steps.accept(&[*token]).expect("fits");
        steps.mask().expect("a mask");
    }
    let mut replay = opened(params);
    replay.accept(&text).expect("fits");
    assert_eq!(replay.mask(), steps.mask());
}

/// Grammars with states worth to come back to.
fn grammars() -> Vec<Value> {
    vec![
        json!({"regex": "(ab|a|bc)*(1|12)?"}),
        json!({"choice": ["ab", "abc", "abcabc", "a1"]}),
        json!({"lark": "start: (A | b)* \"}\"\nA: /a+/\nb: \"{\" start | \"12\""}),
        json!({"json_schema": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}},
            "required": ["b"],
        }}),
        json!({"json_schema": {
            "$ref": "#/$defs/t",
            "$defs": {"t": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}}},
        }}),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whether tokens came one by one, each after a mask, or in any groups.
    #[test]
    fn a_replay_stands_where_the_text_stands(
        grammar in 0..5_usize,
        draws in prop::collection::vec(any::<u16>(), 0..24),
        cuts in prop::collection::vec(any::<bool>(), 24),
    ) {
        let params = grammars().swap_remove(grammar);
        let mut steps = opened(params.clone());
        let mut text = Vec::new();
        let mut mask = steps.mask().expect("a mask");
        for draw in draws {
            let allowed: Vec<_> = ids(&mask).into_iter().filter(|id| ![END, STOP].contains(id)).collect();
            if allowed.is_empty() {
                break;
            }
            let token = allowed[draw as usize % allowed.len()];
            text.push(token);
            steps.accept(&[token]).expect("an allowed token");
            mask = steps.mask().expect("a vocabulary that spells it all");
        }
        let mut replay = opened(params.clone());
        replay.accept(&text).expect("the same tokens");
        prop_assert_eq!(replay.mask().expect("a mask"), mask.clone());
        let mut groups = opened(params);
        let mut start = 0;
        for end in 1..=text.len() {
            if cuts[end - 1] || end == text.len() {
                groups.accept(&text[start..end]).expect("the same tokens");
                start = end;
            }
        }
        prop_assert_eq!(groups.mask().expect("a mask"), mask);
    }
}

#[test]
fn params_are_one_of_the_four() {
    let opens = |params: &Value| {
        let setup = Setup::of_texts(WORDS).params(params.to_string());
        let opened = setup.open::<Grammar>();
        opened.map_or_else(|failure| failure.kind, |_| "opens")
    };
    for (params, expected) in [
        (json!({"json_schema": {}}), "opens"),
        (json!({"json_schema": true}), "opens"),
        (json!({"regex": "a"}), "opens"),
        (json!({"choice": ["a", "b"]}), "opens"),
        (json!({"lark": "start: /a/"}), "opens"),
        (json!({}), "invalid_params"),
        (
            json!({"regex": "a", "lark": "start: /a/"}),
            "invalid_params",
        ),
        (json!({"json_schema": "a"}), "invalid_params"),
        (json!({"regex": ""}), "invalid_params"),
        (json!({"choice": []}), "invalid_params"),
        (json!({"choice": [""]}), "invalid_params"),
        (json!({"lark": ""}), "invalid_params"),
        (json!({"pattern": "a"}), "invalid_params"),
    ] {
        assert_eq!(opens(&params), expected, "{params}");
    }
}
