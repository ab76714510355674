use proptest::prelude::*;
use serde_json::{Value, json};
use sluice_plugin::{TokenId, testing};

use super::{Dry, Params};

fn bytes(id: TokenId) -> Vec<u8> {
    id.to_string().into_bytes()
}

fn ids(value: &Value) -> Vec<TokenId> {
    let ids = value.as_array().into_iter().flatten();
    ids.filter_map(Value::as_u64)
        .map(|id| id as TokenId)
        .collect()
}

fn row(value: &Value) -> Vec<f32> {
    let logits = value.as_array().into_iter().flatten();
    logits
        .map(|l| l.as_f64().map_or(f32::NEG_INFINITY, |l| l as f32))
        .collect()
}

/// A request's fields; breakers are token ids, which here are their own text.
fn params(vector: &Value) -> Params {
    let mut fields = json!({});
    for (name, field) in [
        ("multiplier", "dry_multiplier"),
        ("base", "dry_base"),
        ("allowed_length", "dry_allowed_length"),
        ("last_n", "dry_range"),
    ] {
        if let Some(value) = vector.get(name) {
            fields[field] = value.clone();
        }
    }
    if let Some(breakers) = vector.get("breakers") {
        let texts: Vec<_> = ids(breakers).iter().map(ToString::to_string).collect();
        fields["dry_sequence_breakers"] = json!(texts);
    }
    serde_json::from_value(fields).unwrap_or_else(|error| panic!("{error}"))
}

fn changed(dry: &Dry, logits: &[f32]) -> Vec<f32> {
    let mut row = logits.to_vec();
    let (ids, penalties) = dry.penalties();
    for (id, penalty) in ids.into_iter().zip(penalties) {
        row[id as usize] -= penalty;
    }
    row
}

#[test]
fn worked_vectors() {
    let all: Value =
        serde_json::from_str(include_str!("../../../tests/vectors.json")).unwrap_or_default();
    let vectors = all["vectors"].as_array().cloned().unwrap_or_default();
    let ours: Vec<_> = vectors
        .into_iter()
        .filter(|each| each["op"] == "dry")
        .collect();
    assert_eq!(ours.len(), 9);
    for vector in ours {
        let mut dry = Dry::new(&params(&vector["params"]));
        dry.accept(&ids(&vector["prompt_tokens"]), bytes);
        dry.accept(&ids(&vector["generated_tokens"]), bytes);
        let changed = changed(&dry, &row(&vector["logits"]));
        for (l, expected) in changed.iter().zip(row(&vector["expected_logits"])) {
            assert!(
                (l - expected).abs() <= 1e-5,
                "{}: {changed:?}",
                vector["id"]
            );
        }
    }
}

/// Report C045.
#[test]
fn headers_end_on_a_breaker_and_may_repeat() {
    let on = |breakers: &[&str]| -> Params {
        let fields = json!({ "dry_multiplier": 0.8, "dry_sequence_breakers": breakers });
        serde_json::from_value(fields).unwrap_or_default()
    };
    let penalties = |breakers: &[&str], tokens: &[TokenId]| {
        let mut dry = Dry::new(&on(breakers));
        dry.accept(tokens, bytes);
        dry.penalties()
    };
    assert_eq!(penalties(&["9"], &[1, 9, 3, 1, 9]), (vec![], vec![]));
    assert_eq!(
        penalties(&["9"], &[1, 2, 3, 4, 1, 2, 3]),
        (vec![4], vec![1.4])
    );
    // Of 8 1 2 only what stands after the breaker repeats.
    assert_eq!(
        penalties(&["8"], &[8, 1, 2, 4, 8, 1, 2]),
        (vec![4], vec![0.8])
    );
    assert_eq!(
        penalties(&["7"], &[8, 1, 2, 4, 8, 1, 2]),
        (vec![4], vec![1.4])
    );
}

#[test]
fn off_by_default_and_by_a_range_that_is_too_short() {
    let mut dry = Dry::new(&Params::default());
    assert!(!dry.is_on());
    dry = Dry::new(&Params {
        dry_multiplier: 0.8,
        dry_range: 4,
        ..Params::default()
    });
    dry.accept(&[1, 2, 3, 1, 2], bytes);
    assert_eq!(dry.penalties(), (vec![], vec![]));
}

proptest! {
    #[test]
    fn it_does_not_matter_how_tokens_were_split_over_calls(
        calls in prop::collection::vec(prop::collection::vec(0..4_u32, 0..9), 0..6),
        range in 0..12_usize,
    ) {
        let params = Params {
            dry_multiplier: 0.8,
            dry_range: range,
            dry_sequence_breakers: vec!["3".into()],
            ..Params::default()
        };
        let mut replayed = Dry::new(&params);
        replayed.accept(&calls.concat(), bytes);
        let mut stepped = Dry::new(&params);
        for call in &calls {
            stepped.accept(call, bytes);
            stepped.penalties();
        }
        prop_assert_eq!(replayed.penalties(), stepped.penalties());
    }

    /// The definition, candidate by candidate.
    #[test]
    fn agrees_with_the_definition(tokens in prop::collection::vec(0..4_u32, 0..24)) {
        let params = Params {
            dry_multiplier: 1.0,
            dry_base: 2.0,
            dry_allowed_length: 1,
            dry_sequence_breakers: vec!["3".into()],
            ..Params::default()
        };
        let mut dry = Dry::new(&params);
        dry.accept(&tokens, bytes);
        let mut expected = Vec::new();
        for candidate in 0..3_u32 {
            let longest = (1..tokens.len())
                .filter(|&at| tokens[at] == candidate)
                .filter_map(|at| (1..=at).rev().find(|&n| {
                    let run = &tokens[at - n..at];
                    !run.contains(&3) && tokens.ends_with(run)
                }))
                .max();
            if let Some(longest) = longest {
                expected.push((candidate, 2_f32.powi(longest as i32 - 1)));
            }
        }
        prop_assert_eq!(dry.penalties(), expected.into_iter().unzip());
    }
}

#[test]
fn params_are_held_to_their_ranges() {
    testing::params::<Dry>(
        &[
            "{}",
            r#"{"dry_multiplier": 100, "dry_base": 1, "dry_allowed_length": 1}"#,
            r#"{"dry_base": 10, "dry_allowed_length": 1000}"#,
            r#"{"dry_range": 4294967295}"#,
            r#"{"dry_sequence_breakers": []}"#,
            r#"{"dry_sequence_breakers": ["x"]}"#,
        ],
        &[
            r#"{"dry_multiplier": -0.1}"#,
            r#"{"dry_multiplier": 100.1}"#,
            r#"{"dry_base": 0.9}"#,
            r#"{"dry_base": 10.1}"#,
            r#"{"dry_allowed_length": 0}"#,
            r#"{"dry_allowed_length": 1001}"#,
            r#"{"dry_range": 4294967296}"#,
            r#"{"dry_range": -1}"#,
            r#"{"dry_sequence_breakers": [""]}"#,
            r#"{"dry_sequence_breakers": null}"#,
            r#"{"multiplier": 1}"#,
        ],
    );
}
