use proptest::prelude::*;
use serde_json::{Value, json};
use sluice_plugin::testing;

use super::{AdaptiveP, Aim, Params};

fn row(value: &Value) -> Vec<f64> {
    let logits = value.as_array().into_iter().flatten();
    logits.filter_map(Value::as_f64).collect()
}

fn number(params: &Value, name: &str) -> f64 {
    params[name].as_f64().unwrap_or(f64::NAN)
}

#[test]
fn worked_vectors() {
    let all: Value =
        serde_json::from_str(include_str!("../../../tests/vectors.json")).unwrap_or_default();
    let vectors = all["vectors"].as_array().cloned().unwrap_or_default();
    let mut checked = 0;
    for vector in vectors
        .iter()
        .filter(|each| each["op"] == "adaptive_p_step")
    {
        let params = &vector["params"];
        let aim = Aim {
            weighted_sum: number(params, "weighted_sum"),
            total_weight: number(params, "total_weight"),
            ..Aim::new(number(params, "target"), number(params, "decay"))
        };
        // The logits are those of probabilities that sum to 1.
        let changed = row(&vector["logits"])
            .into_iter()
            .map(|l| aim.logit(l.exp()));
        for (l, expected) in changed.zip(row(&vector["expected_logits"])) {
            assert!(
                (l - expected).abs() < 1e-5,
                "{}: {l}, not {expected}",
                vector["id"]
            );
        }
        checked += 1;
    }
    assert_eq!(checked, 1);
}

#[test]
fn starts_as_if_the_target_had_been_met() {
    let aim = Aim::new(0.3, 0.9);
    assert!((aim.weighted_sum - 3.0).abs() < 1e-12);
    assert!((aim.total_weight - 10.0).abs() < 1e-12);
    assert_eq!(aim.logit(0.3), 5.0);
}

#[test]
fn counts_the_probability_that_the_drawn_token_had() {
    // ½, ¼, ¼ at the target ¼: d is ⅚, 0, 0, so the masses are
    // e^(−10·(25/36)/(11/6)) = e^(−125/33) = 0.0226, 1 and 1.
    let p = [0.5, 0.25, 0.25];
    let mut aim = Aim::new(0.25, 0.5);
    assert_eq!(aim.draw(&p, 0.0110), Some(0));
    // s = ½ + ½·½, w = 1 + ½·2: the aim moves to ½ − ⅜ = ⅛.
    assert_eq!((aim.weighted_sum, aim.total_weight), (0.75, 2.0));
    assert_eq!(aim.logit(0.125), 5.0);
    let mut aim = Aim::new(0.25, 0.5);
    assert_eq!(aim.draw(&p, 0.0113), Some(1));
    assert_eq!((aim.weighted_sum, aim.total_weight), (0.5, 2.0));
    assert_eq!(aim.draw(&p, 0.9999), Some(2));
    assert_eq!(aim.draw(&[], 0.5), None);
}

/// The token at `u` from 1, ½, ¼, ¼ and one that is banned.
fn chosen(fields: Value, u: f64) -> Option<u32> {
    let params: Params = serde_json::from_value(fields).unwrap_or_else(|error| panic!("{error}"));
    let row = [
        0.25_f32.ln(),
        1_f32.ln(),
        0.25_f32.ln(),
        f32::NEG_INFINITY,
        0.5_f32.ln(),
    ];
    let adaptive = AdaptiveP::new(params, &[], row.len());
    adaptive.map_or(None, |mut adaptive| adaptive.choose(&row[..], &|_| u))
}

#[test]
fn an_ordinary_draw_below_a_target_of_0() {
    for (u, token) in [(0.49, 1), (0.51, 4), (0.76, 0), (0.99, 2)] {
        assert_eq!(chosen(json!({}), u), Some(token), "{u}");
        assert_eq!(
            chosen(json!({"adaptive_target": -0.1}), u),
            Some(token),
            "{u}"
        );
    }
    assert_ne!(chosen(json!({"adaptive_target": 0}), 0.49), Some(1));
}

#[test]
fn draws_from_what_truncation_kept() {
    // Renormalised, the two kept have ⅔ and ⅓: far from the target, and so
    // only the order of their distances counts.
    let fields = |target: f64| json!({"top_k": 2, "adaptive_target": target});
    assert_eq!(chosen(fields(0.0), 0.2), Some(4));
    assert_eq!(chosen(fields(1.0), 0.8), Some(1));
    assert_eq!(
        chosen(json!({"temperature": 0, "adaptive_target": 0.0}), 0.99),
        Some(1)
    );
}

proptest! {
    #[test]
    fn a_banned_token_is_never_drawn_and_the_average_is_a_probability(
        rows in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![4 => -30.0..30.0_f32, 1 => Just(f32::NEG_INFINITY)], 1..90,
            ),
            1..20,
        ),
        (target, decay) in (0.0..1.0, 0.0..0.99),
        u in 0.0..1.0,
    ) {
        let params = Params {
            adaptive_target: target,
            adaptive_decay: decay,
            ..Params::default()
        };
        let adaptive = AdaptiveP::new(params, &[], 90);
        let mut adaptive = adaptive.map_err(TestCaseError::fail)?;
        for row in rows {
            let free = row.iter().any(|l| *l > f32::NEG_INFINITY);
            let chosen = adaptive.choose(&row[..], &|_| u);
            prop_assert_eq!(chosen.is_some(), free);
            prop_assert!(chosen.is_none_or(|id| row[id as usize] > f32::NEG_INFINITY));
            let average = adaptive.aim.map(|aim| aim.weighted_sum / aim.total_weight);
            prop_assert!(average.is_some_and(|average| (0.0..1.0 + 1e-9).contains(&average)));
        }
    }
}

/// Its own, and some of the sampler's, whose edges the sampler's tests hold.
#[test]
fn params_are_held_to_their_ranges() {
    testing::params::<AdaptiveP>(
        &[
            "{}",
            r#"{"top_k": -1, "order": ["typ_p", "xtc"]}"#,
            r#"{"adaptive_target": -7}"#,
            r#"{"adaptive_target": 1, "adaptive_decay": 0.99}"#,
            r#"{"adaptive_decay": 0}"#,
        ],
        &[
            r#"{"temperature": -0.1}"#,
            r#"{"top_k": 1.5}"#,
            r#"{"order": ["xtc", "xtc"]}"#,
            r#"{"heat": 1}"#,
            r#"{"adaptive_target": 1.1}"#,
            r#"{"adaptive_decay": 1}"#,
            r#"{"adaptive_decay": -0.1}"#,
        ],
    );
}
