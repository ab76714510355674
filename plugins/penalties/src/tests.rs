use proptest::prelude::*;
use serde_json::{Value, json};
use sluice_plugin::{TokenId, testing};

use super::{Params, Penalties};

/// The row after one plan, as the host would change it.
fn changed(penalties: &Penalties, logits: &[f32]) -> Vec<f32> {
    let mut row = logits.to_vec();
    if let Some(repetition) = &penalties.repetition {
        for &id in repetition.ids() {
            let l = &mut row[id as usize];
            *l = if *l > 0.0 {
                *l / repetition.divisor()
            } else {
                *l * repetition.divisor()
            };
        }
    }
    let additions = [
        penalties
            .frequency
            .as_ref()
            .map(super::Frequency::additions),
        penalties.presence.as_ref().map(super::Presence::additions),
    ];
    for (ids, values) in additions.into_iter().flatten() {
        for (&id, value) in ids.iter().zip(values) {
            row[id as usize] += value;
        }
    }
    row
}

/// The request fields of a worked vector's steps; None if one is not ours.
fn fields<'a>(steps: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Option<Params> {
    let mut fields = json!({});
    for (op, params) in steps {
        for (name, value) in params
            .as_object()?
            .iter()
            .filter(|(_, value)| !value.is_null())
        {
            match (op, name.as_str()) {
                (_, "op") => {}
                ("repetition", "penalty") => fields["repetition_penalty"] = value.clone(),
                ("repetition", "window") => fields["repetition_context_size"] = value.clone(),
                ("presence_frequency", "presence") => fields["presence_penalty"] = value.clone(),
                ("presence_frequency", "frequency") => fields["frequency_penalty"] = value.clone(),
                ("presence_frequency", "window") => {
                    fields["presence_context_size"] = value.clone();
                    fields["frequency_context_size"] = value.clone();
                }
                _ => return None,
            }
        }
    }
    serde_json::from_value(fields).ok()
}

fn named_steps(steps: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let steps = steps.as_array().into_iter().flatten();
    steps.map(|step| (step["op"].as_str().unwrap_or_default(), step))
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

#[track_caller]
fn assert_close(actual: &[f32], expected: &[f32], id: &Value) {
    assert_eq!(actual.len(), expected.len(), "{id}");
    for (a, e) in actual.iter().zip(expected) {
        let close = a == e || (a - e).abs() <= 1e-5 * e.abs().max(1.0);
        assert!(close, "{id}: {actual:?} is not {expected:?}");
    }
}

fn vectors(op: &str) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(include_str!("../../../tests/vectors.json")).unwrap_or_default();
    let vectors = all["vectors"].as_array().cloned().unwrap_or_default();
    vectors
        .into_iter()
        .filter(|vector| vector["op"] == op)
        .collect()
}

/// Checks one vector, with the generated tokens in one call and one by one.
fn check(vector: &Value, params: &Params) {
    let generated = ids(&vector["generated_tokens"]);
    let mut at_once = Penalties::new(params, &ids(&vector["prompt_tokens"]));
    at_once.accept(&generated);
    let mut in_turn = Penalties::new(params, &ids(&vector["prompt_tokens"]));
    for id in generated {
        in_turn.accept(&[id]);
    }
    let expected = row(&vector["expected_logits"]);
    for penalties in [at_once, in_turn] {
        assert_close(
            &changed(&penalties, &row(&vector["logits"])),
            &expected,
            &vector["id"],
        );
    }
}

#[test]
fn single_penalty_vectors() {
    for (op, count) in [("presence_frequency", 9), ("repetition", 9)] {
        let vectors = vectors(op);
        assert_eq!(vectors.len(), count);
        for vector in vectors {
            let params = fields([(op, &vector["params"])]);
            assert!(params.is_some(), "{}", vector["id"]);
            check(&vector, &params.unwrap_or_default());
        }
    }
}

#[test]
fn chain_vectors_of_penalties_alone() {
    let ours = vectors("chain").into_iter().filter_map(|vector| {
        let params = fields(named_steps(&vector["params"]["steps"]))?;
        Some((vector, params))
    });
    let ours: Vec<_> = ours.collect();
    assert_eq!(
        ours.iter()
            .map(|(vector, _)| &vector["id"])
            .collect::<Vec<_>>(),
        ["CH01"]
    );
    for (vector, params) in ours {
        check(&vector, &params);
    }
}

#[test]
fn greedy_run_vectors() {
    let mut checked = 0;
    for vector in vectors("greedy_run") {
        let Some(params) = fields(named_steps(&vector["params"]["pipeline"])) else {
            continue;
        };
        let mut penalties = Penalties::new(&params, &ids(&vector["prompt_tokens"]));
        let mut tokens = Vec::new();
        for _ in 0..vector["params"]["steps"].as_u64().unwrap_or(0) {
            let row = changed(&penalties, &row(&vector["logits"]));
            let best = (0..row.len())
                .rev()
                .max_by(|&a, &b| row[a].total_cmp(&row[b]));
            tokens.push(best.unwrap_or(usize::MAX) as TokenId);
            penalties.accept(&tokens[tokens.len() - 1..]);
        }
        assert_eq!(tokens, ids(&vector["expected_tokens"]), "{}", vector["id"]);
        checked += 1;
    }
    assert_eq!(checked, 3);
}

/// Report C001 and the dialect vectors X54 and X57: the prompt counts for
/// presence and frequency if and only if the history is all.
#[test]
fn the_prompt_counts_when_asked_for() {
    let params = |history: &str| -> Params {
        let fields = json!({"presence_penalty": 1, "frequency_penalty": 0.5, "history": history});
        serde_json::from_value(fields).unwrap_or_default()
    };
    let row = [1.0, 2.0, 3.0, 4.0];
    let prompt = [2, 2, 3];
    let generated = Penalties::new(&params("generated"), &prompt);
    assert_eq!(changed(&generated, &row), row);
    let all = Penalties::new(&params("all"), &prompt);
    assert_eq!(changed(&all, &row), [1.0, 2.0, 1.0, 2.5]);
}

#[test]
fn a_window_over_all_slides_out_of_the_prompt() {
    let fields = json!({
        "history": "all",
        "presence_penalty": 1, "presence_context_size": 2,
        "frequency_penalty": 0.5, "frequency_context_size": 3,
    });
    let params = serde_json::from_value(fields).unwrap_or_default();
    let mut penalties = Penalties::new(&params, &[0, 1]);
    penalties.accept(&[1, 2]);
    assert_eq!(changed(&penalties, &[4.0; 4]), [4.0, 2.0, 2.5, 4.0]);
}

#[test]
fn no_penalty_adds_an_infinity() {
    let params = Params {
        frequency_penalty: f32::MIN,
        presence_penalty: f32::MAX,
        ..Params::default()
    };
    let mut penalties = Penalties::new(&params, &[]);
    penalties.accept(&[0, 0, 0]);
    let added = penalties.frequency.as_ref().map(|each| each.additions().1);
    assert_eq!(added, Some(vec![f32::MAX]));
    let added = penalties.presence.as_ref().map(|each| each.additions().1);
    assert_eq!(added, Some(vec![f32::MIN]));
}

proptest! {
    #[test]
    fn it_does_not_matter_how_tokens_were_split_over_calls(
        prompt in prop::collection::vec(0..6_u32, 0..8),
        calls in prop::collection::vec(prop::collection::vec(0..6_u32, 0..5), 0..6),
        sizes in (0..5_u32, 0..5_u32, 0..5_u32),
        history in prop_oneof![Just("generated"), Just("all")],
    ) {
        let fields = json!({
            "repetition_penalty": 1.5, "repetition_context_size": sizes.0,
            "presence_penalty": 0.25, "presence_context_size": sizes.1,
            "frequency_penalty": 0.5, "frequency_context_size": sizes.2,
            "history": history,
        });
        let params: Params = serde_json::from_value(fields).unwrap_or_default();
        let mut replayed = Penalties::new(&params, &prompt);
        replayed.accept(&calls.concat());
        let mut stepped = Penalties::new(&params, &prompt);
        for call in &calls {
            stepped.accept(call);
        }
        let row = [3.0, -2.0, 0.5, 0.0, f32::NEG_INFINITY, 9.0];
        prop_assert_eq!(changed(&replayed, &row), changed(&stepped, &row));
    }
}

#[test]
fn params_are_held_to_their_ranges() {
    testing::params::<Penalties>(
        &[
            "{}",
            r#"{"repetition_penalty": 0.001}"#,
            r#"{"repetition_penalty": 100}"#,
            r#"{"repetition_context_size": 4294967295}"#,
            r#"{"presence_penalty": -3.4028234663852886e38}"#,
            r#"{"frequency_penalty": 3.4028234663852886e38}"#,
            r#"{"history": "all"}"#,
        ],
        &[
            r#"{"repetition_penalty": 0}"#,
            r#"{"repetition_penalty": 100.1}"#,
            r#"{"repetition_penalty": null}"#,
            r#"{"repetition_context_size": -1}"#,
            r#"{"presence_context_size": 4294967296}"#,
            r#"{"frequency_context_size": 1.5}"#,
            r#"{"presence_penalty": 1e39}"#,
            r#"{"frequency_penalty": -1e39}"#,
            r#"{"history": "some"}"#,
            r#"{"penalty": 1}"#,
            "[]",
        ],
    );
}

/// The server takes them as what is off.
#[test]
fn the_schema_has_the_defaults() {
    let schema = sluice_plugin::schema::<Params>();
    let default = |name: &str| schema["properties"][name]["default"].clone();
    assert_eq!(default("repetition_penalty"), json!(1.0));
    assert_eq!(default("presence_penalty"), json!(0.0));
    assert_eq!(default("frequency_context_size"), json!(0));
    assert_eq!(default("history"), json!("generated"));
}
