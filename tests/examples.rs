//! Each example does what it says, as the component that is committed: on a
//! small vocabulary of text, before the shipped sampler, and again with all
//! tokens at once, as a sequence is rebuilt.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    io::Write,
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
};

use serde_json::{Value, json};
use sluice::{
    engine::{Chain, ModelInfo, Plan, TokenId},
    plugin::{OpenError, SequenceInfo, StageRef, Vocabulary},
};
use support::{Plugins, root, shipped};

/// The text of each token. The first ends a sequence, the second is special.
const TOKENS: [&str; 12] = [
    "", "</think>", "a", "b", "d", "re", "ad", "ading", "read", "yes", "yesa", "ab",
];
const END: TokenId = 0;

const EXAMPLES: [&str; 10] = [
    "at-most",
    "ban-words",
    "cite-from-prompt",
    "forced-prefix",
    "length-control",
    "multiple-choice",
    "prevent-hallucination",
    "thinking-budget",
    "trigger-phrase",
    "watermark",
];

fn plugins() -> &'static Plugins {
    static PLUGINS: OnceLock<Plugins> = OnceLock::new();
    PLUGINS.get_or_init(|| {
        let example =
            |name| std::fs::read(root().join(format!("examples/dist/{name}.wasm"))).unwrap();
        let mut components = EXAMPLES.map(example).to_vec();
        components.push(shipped("sampler"));
        Plugins::new(&components)
    })
}

/// The ids of a text, each the longest token that fits; `None` if one is not
/// in the vocabulary.
fn ids(mut text: &str) -> Vec<TokenId> {
    let mut ids = Vec::new();
    while !text.is_empty() {
        let fits = (2..TOKENS.len()).filter(|&id| text.starts_with(TOKENS[id]));
        let longest = fits.max_by_key(|&id| TOKENS[id].len()).unwrap();
        text = &text[TOKENS[longest].len()..];
        ids.push(longest as TokenId);
    }
    ids
}

fn id(token: &str) -> TokenId {
    let position = TOKENS.iter().position(|text| *text == token);
    position.unwrap() as TokenId
}

fn vocabulary() -> Arc<Vocabulary> {
    let mut offsets = vec![0];
    for token in TOKENS {
        offsets.push(offsets[offsets.len() - 1] + token.len() as u32);
    }
    let info = ModelInfo {
        vocabulary_size: TOKENS.len() as u32,
        tokenizer_size: TOKENS.len() as u32,
        end_of_sequence: vec![END],
        context_length: 128,
    };
    let special = vec![(END, "<end>".to_owned()), (1, TOKENS[1].to_owned())];
    let bytes = TOKENS.concat().into_bytes();
    Arc::new(Vocabulary::new(info, offsets, bytes, special, Box::new(ids)).unwrap())
}

fn stages(name: &str, params: Value, sampler: Value) -> [StageRef; 2] {
    [(name, params), ("sampler", sampler)]
        .map(|(name, params)| plugins().stage(name, params).unwrap())
}

/// Opens the example before a greedy sampler.
fn open(name: &str, params: &Value, prompt: &[TokenId]) -> Result<Box<dyn Chain>, OpenError> {
    let stages = stages(name, params.clone(), json!({"temperature": 0}));
    let info = SequenceInfo {
        prompt: prompt.to_vec(),
        max_tokens: 16,
        end_ids: vec![END],
    };
    plugins().open(&vocabulary(), &stages, &info, 0)
}

/// What a model generates that has these logits at every position, zero for
/// other tokens: until the end, or so many tokens.
fn generated(
    name: &str,
    params: &Value,
    prompt: &[TokenId],
    logits: &[(&'static str, f32)],
    n: usize,
) -> Vec<&'static str> {
    let mut row = vec![0.0; TOKENS.len()];
    for (token, logit) in logits {
        row[id(token) as usize] = *logit;
    }
    let position = |chain: &mut dyn Chain, accepted: &[TokenId]| {
        let plan = chain.plan(accepted).unwrap();
        match plan {
            Plan::Sample => vec![chain.finish_values(&mut row.clone()).unwrap()],
            Plan::Force(ids) => ids,
            Plan::Stop => vec![],
        }
    };
    let mut chain = open(name, params, prompt).unwrap();
    let mut tokens: Vec<TokenId> = Vec::new();
    let mut newest = Vec::new();
    while tokens.len() < n && tokens.last() != Some(&END) {
        let next = position(&mut *chain, &newest);
        let mut rebuilt = open(name, params, prompt).unwrap();
        assert_eq!(position(&mut *rebuilt, &tokens), next, "{name}, rebuilt");
        if next.is_empty() {
            break;
        }
        tokens.extend(&next);
        newest = next;
    }
    tokens.iter().map(|&id| TOKENS[id as usize]).collect()
}

#[test]
fn at_most_bans_what_came_so_often() {
    let logits = [("a", 9.0), ("b", 8.0), ("yes", 7.0)];
    let tokens = generated("at-most", &json!({"times": 2}), &[2, 2, 2], &logits, 5);
    assert_eq!(tokens, ["a", "a", "b", "b", "yes"]);
}

#[test]
fn ban_words_sees_a_word_in_any_split() {
    let logits = [("read", 9.0), ("re", 8.0), ("ad", 7.0), ("b", 6.0)];
    let tokens = generated("ban-words", &json!({"words": ["read"]}), &[], &logits, 3);
    assert_eq!(tokens, ["re", "re", "re"]);
    let logits = [("re", 5.0), ("ad", 6.0), ("b", 1.0)];
    let tokens = generated("ban-words", &json!({"words": ["adad"]}), &[], &logits, 3);
    assert_eq!(tokens, ["ad", "re", "ad"]);
}

#[test]
fn cite_from_prompt_raises_its_words_and_no_special_token() {
    let logits = [("a", 10.0), ("b", 8.0), ("</think>", 9.0)];
    let prompt = [1, id("b"), id("b")];
    let tokens = generated(
        "cite-from-prompt",
        &json!({"boost": 3}),
        &prompt,
        &logits,
        2,
    );
    assert_eq!(tokens, ["b", "b"]);
    let tokens = generated(
        "cite-from-prompt",
        &json!({"boost": 1}),
        &prompt,
        &logits,
        2,
    );
    assert_eq!(tokens, ["a", "a"]);
}

#[test]
fn forced_prefix_leaves_the_split_to_the_model_and_heals_the_last_token() {
    let params = json!({"text": "read"});
    let whole = [("b", 9.0), ("read", 5.0), ("re", 4.0)];
    assert_eq!(
        generated("forced-prefix", &params, &[], &whole, 2),
        ["read", "b"]
    );
    let parts = [("ading", 9.0), ("re", 8.0)];
    assert_eq!(
        generated("forced-prefix", &params, &[], &parts, 2),
        ["re", "ading"]
    );
    let letters = [("re", 8.0), ("a", 7.0)];
    assert_eq!(
        generated("forced-prefix", &params, &[], &letters, 3),
        ["re", "a", "d"]
    );
}

#[test]
fn length_control_ends_where_the_push_wins() {
    // After n tokens the end has 4 · (n − 2), which wins at 12.
    let params = json!({"from": 2, "per_token": 4});
    let tokens = generated("length-control", &params, &[], &[("a", 10.0)], 16);
    assert_eq!(tokens, ["a", "a", "a", "a", "a", ""]);
}

#[test]
fn multiple_choice_answers_with_one_of_them() {
    let logits = [("b", 9.0), ("yes", 8.0), ("d", 7.0), ("", 6.0)];
    let short = json!({"choices": ["yes", "ad"]});
    assert_eq!(
        generated("multiple-choice", &short, &[], &logits, 9),
        ["yes"]
    );
    // One continues the other, and the model would rather go on than end.
    let long = json!({"choices": ["yes", "yesd"]});
    assert_eq!(
        generated("multiple-choice", &long, &[], &logits, 9),
        ["yes", "d"]
    );
    let logits = [("b", 9.0), ("yes", 8.0), ("d", 7.0), ("", 7.5)];
    assert_eq!(
        generated("multiple-choice", &long, &[], &logits, 9),
        ["yes", ""]
    );
}

/// With eleven other logits of zero the best has e⁹ / (e⁹ + 11) = 0.999, or e² /
/// (e² + 11) = 0.40.
#[test]
fn prevent_hallucination_writes_its_phrase_where_the_model_is_unsure_and_ends() {
    let params = json!({"min_prob": 0.5, "phrase": "readb"});
    let unsure = [("a", 2.0)];
    let tokens = generated("prevent-hallucination", &params, &[], &unsure, 9);
    assert_eq!(tokens, ["read", "b", ""]);
    // The prompt is no part of the text.
    let tokens = generated("prevent-hallucination", &params, &[id("read")], &unsure, 9);
    assert_eq!(tokens, ["read", "b", ""]);
    let sure = [("a", 9.0)];
    let tokens = generated("prevent-hallucination", &params, &[], &sure, 3);
    assert_eq!(tokens, ["a", "a", "a"]);
    let less = json!({"min_prob": 0.39, "phrase": "readb"});
    let tokens = generated("prevent-hallucination", &less, &[], &unsure, 2);
    assert_eq!(tokens, ["a", "a"]);
    // A model that is sure does not begin the phrase: b has e⁷ / (e⁹ + e⁷ + 10).
    let own = [("read", 9.0), ("b", 7.0)];
    let tokens = generated("prevent-hallucination", &params, &[], &own, 2);
    assert_eq!(tokens, ["b", "b"]);
}

#[test]
fn thinking_budget_forces_the_end_of_thinking_once() {
    let params = json!({"tokens": 3});
    let tokens = generated("thinking-budget", &params, &[], &[("a", 9.0)], 7);
    assert_eq!(tokens, ["a", "a", "a", "</think>", "a", "a", "a"]);
    let params = json!({"tokens": 2, "end": "readb"});
    let tokens = generated("thinking-budget", &params, &[], &[("a", 9.0)], 6);
    assert_eq!(tokens, ["a", "a", "read", "b", "a", "a"]);
    let own = [("</think>", 9.0)];
    let tokens = generated("thinking-budget", &json!({"tokens": 1}), &[], &own, 3);
    assert_eq!(tokens, ["</think>", "</think>", "</think>"]);
}

#[test]
fn trigger_phrase_follows_its_trigger_each_time() {
    let params = json!({"after": "bb", "phrase": "yesd"});
    let tokens = generated("trigger-phrase", &params, &[], &[("b", 9.0)], 8);
    assert_eq!(tokens, ["b", "b", "yes", "d", "b", "b", "yes", "d"]);
    let endless = json!({"after": "b", "phrase": "ab"});
    let Err(OpenError::InvalidParams { message, .. }) = open("trigger-phrase", &endless, &[])
    else {
        panic!("opened");
    };
    assert!(message.contains("for ever"), "{message}");
}

/// The z score of `detect.py`.
fn detected(ids: &[TokenId], key: u32) -> f64 {
    let mut python = Command::new("python3")
        .arg(root().join("examples/watermark/detect.py"))
        .arg(key.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = serde_json::to_vec(ids).unwrap();
    python.stdin.take().unwrap().write_all(&input).unwrap();
    let said = String::from_utf8(python.wait_with_output().unwrap().stdout).unwrap();
    said.trim().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Of 500 equal tokens each has an even chance to be green, and e² / (e² + 1) =
/// 0.88 with a bias of 2: 200 of them are 10.8 standard deviations away.
#[test]
fn the_holder_of_the_key_sees_the_watermark() {
    const V: u32 = 500;
    let vocabulary = support::numbered_vocabulary(V, vec![END]);
    let stages = stages("watermark", json!({"key": 42}), json!({"temperature": 1}));
    let info = SequenceInfo {
        prompt: vec![7],
        max_tokens: 200,
        end_ids: vec![],
    };
    let mut chain = plugins().open(&vocabulary, &stages, &info, 5).unwrap();
    let mut ids = info.prompt.clone();
    let mut accepted = vec![];
    for _ in 0..200 {
        assert_eq!(chain.plan(&accepted).unwrap(), Plan::Sample);
        let token = chain.finish_values(&mut vec![0.0; V as usize]).unwrap();
        accepted = vec![token];
        ids.push(token);
    }
    assert!((7.0..14.0).contains(&detected(&ids, 42)));
    assert!(detected(&ids, 43).abs() < 4.0);
}
