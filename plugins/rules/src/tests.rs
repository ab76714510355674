use proptest::prelude::*;
use serde_json::Value;
use sluice_plugin::testing;

use super::{BadWords, Params, Rules, ngrams, parse};

fn vectors(op: &str) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(include_str!("../../../tests/vectors.json")).unwrap_or_default();
    let vectors = all["vectors"].as_array().cloned().unwrap_or_default();
    vectors
        .into_iter()
        .filter(|vector| vector["op"] == op)
        .collect()
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().into_iter().flatten();
    ids.filter_map(Value::as_u64).map(|id| id as u32).collect()
}

/// A vector's ids without the ones banned.
fn left(vector: &Value, banned: &[u32]) -> Vec<u32> {
    let size = vector["logits"].as_array().map_or(0, Vec::len) as u32;
    (0..size).filter(|id| !banned.contains(id)).collect()
}

#[test]
fn logit_bias_vectors() {
    let vectors = vectors("logit_bias");
    assert_eq!(vectors.len(), 7);
    for vector in vectors {
        let id = &vector["id"];
        let params = Params {
            logit_bias: serde_json::from_value(vector["params"]["bias"].clone())
                .unwrap_or_default(),
            ..Params::default()
        };
        let logits = vector["logits"].as_array().cloned().unwrap_or_default();
        let parsed = parse(&params, logits.len() as u32, 16);
        if vector["expected_error"] == "invalid_token_id" {
            assert!(parsed.is_err(), "{id}");
            continue;
        }
        let (biased, biases) = parsed.unwrap_or_default();
        let mut row: Vec<_> = logits
            .iter()
            .map(|l| l.as_f64().map_or(f32::NEG_INFINITY, |l| l as f32))
            .collect();
        for (id, bias) in biased.iter().zip(biases) {
            row[*id as usize] += bias;
        }
        let expected = vector["expected_logits"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        assert_eq!(row.len(), expected.len(), "{id}");
        for (l, expected) in row.iter().zip(expected) {
            let expected = expected.as_f64().map_or(f32::NEG_INFINITY, |l| l as f32);
            assert!(
                *l == expected || (l - expected).abs() <= 1e-5 * expected.abs().max(1.0),
                "{id}"
            );
        }
    }
}

#[test]
fn bad_words_vectors() {
    let vectors = vectors("bad_words");
    assert_eq!(vectors.len(), 2);
    for vector in vectors {
        let words = vector["params"]["ids"]
            .as_array()
            .into_iter()
            .flatten()
            .map(ids);
        let mut bad = BadWords::new(words.collect());
        bad.push(&ids(&vector["generated_tokens"]));
        assert_eq!(
            left(&vector, &bad.banned()),
            ids(&vector["kept_ids"]),
            "{}",
            vector["id"]
        );
    }
}

#[test]
fn no_repeat_ngram_vectors() {
    let vectors = vectors("no_repeat_ngram");
    assert_eq!(vectors.len(), 2);
    for vector in vectors {
        let size = vector["params"]["size"].as_u64().unwrap_or(0) as usize;
        let mut tokens = ids(&vector["prompt_tokens"]);
        tokens.extend(ids(&vector["generated_tokens"]));
        let banned = ngrams::banned(&tokens, size);
        assert_eq!(
            left(&vector, &banned),
            ids(&vector["kept_ids"]),
            "{}",
            vector["id"]
        );
    }
}

proptest! {
    #[test]
    fn bad_words_do_not_depend_on_how_tokens_were_split_over_calls(
        words in prop::collection::vec(prop::collection::vec(0..3_u32, 1..4), 0..4),
        calls in prop::collection::vec(prop::collection::vec(0..3_u32, 0..5), 0..6),
    ) {
        let mut replayed = BadWords::new(words.clone());
        replayed.push(&calls.concat());
        let mut stepped = BadWords::new(words.clone());
        for call in &calls {
            stepped.push(call);
            stepped.banned();
        }
        prop_assert_eq!(replayed.banned(), stepped.banned());
        let generated = calls.concat();
        let completes = |word: &&Vec<u32>| generated.ends_with(&word[..word.len() - 1]);
        let expected: Vec<_> = words
            .iter()
            .filter(completes)
            .map(|word| word[word.len() - 1])
            .collect();
        prop_assert_eq!(replayed.banned(), expected);
    }
}

#[test]
fn params_are_held_to_their_ranges() {
    testing::params::<Rules>(
        &[
            "{}",
            r#"{"allowed_token_ids": [0, 7]}"#,
            r#"{"logit_bias": {"0": -100, "7": 100}}"#,
            r#"{"bad_words": ["7", [1, 2]]}"#,
            r#"{"min_tokens": 4096, "ignore_eos": true}"#,
            r#"{"no_repeat_ngram_size": 4294967295}"#,
        ],
        &[
            r#"{"allowed_token_ids": []}"#,
            r#"{"allowed_token_ids": [-1]}"#,
            r#"{"allowed_token_ids": [8]}"#,
            r#"{"allowed_token_ids": [4294967296]}"#,
            r#"{"allowed_token_ids": null}"#,
            r#"{"logit_bias": {"0": -100.1}}"#,
            r#"{"logit_bias": {"0": 100.1}}"#,
            r#"{"logit_bias": {"01": 1}}"#,
            r#"{"logit_bias": {"12345678901": 1}}"#,
            r#"{"bad_words": [""]}"#,
            r#"{"bad_words": [[]]}"#,
            r#"{"bad_words": [[8]]}"#,
            r#"{"bad_words": [5]}"#,
            r#"{"min_tokens": -1}"#,
            r#"{"min_tokens": 4097}"#,
            r#"{"ignore_eos": 1}"#,
            r#"{"no_repeat_ngram_size": 0.5}"#,
            r#"{"stop": true}"#,
        ],
    );
}
