use proptest::prelude::*;
use serde_json::{Value, json};
use sluice_plugin::{TokenId, logits::Candidates};

use super::{Params, Pipeline, ranking::Row};

/// A row that the host would offer, from plain logits.
struct Slice<'a>(&'a [f32]);

impl Slice<'_> {
    fn in_order(&self) -> Vec<TokenId> {
        let mut ids: Vec<_> = (0..self.0.len())
            .filter(|&id| self.0[id] > f32::NEG_INFINITY)
            .collect();
        ids.sort_by(|&a, &b| self.0[b].total_cmp(&self.0[a]).then(a.cmp(&b)));
        ids.into_iter().map(|id| id as TokenId).collect()
    }
}

impl Row for Slice<'_> {
    fn top(&self, k: u32) -> Candidates {
        let mut ids = self.in_order();
        ids.truncate(k as usize);
        let logits = ids.iter().map(|&id| self.0[id as usize]).collect();
        Candidates { ids, logits }
    }

    fn log_sum_exp(&self, temperature: f32) -> f64 {
        let scaled = |l: &f32| f64::from(*l) / f64::from(temperature);
        let max = self.0.iter().map(scaled).fold(f64::NEG_INFINITY, f64::max);
        max + self
            .0
            .iter()
            .map(|l| (scaled(l) - max).exp())
            .sum::<f64>()
            .ln()
    }
}

/// The token at `u`; xtc fires whenever its probability is above 0.
fn choose(params: &Value, end_ids: &[TokenId], logits: &[f32], u: f64) -> Option<TokenId> {
    let pipeline = Pipeline {
        params: serde_json::from_value::<Params>(params.clone()).unwrap_or_default(),
        end_ids: end_ids.to_vec(),
        vocabulary_size: logits.len(),
    };
    pipeline.choose(Slice(logits), |draw| if draw == 0 { u } else { 0.0 })
}

/// Every token that some draw gives, ascending.
fn kept(params: &Value, end_ids: &[TokenId], logits: &[f32]) -> Vec<TokenId> {
    let draws = (0..4096).map(|i| (f64::from(i) + 0.5) / 4096.0);
    let mut ids: Vec<_> = draws
        .filter_map(|u| choose(params, end_ids, logits, u))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The request fields of a worked vector's short parameter names.
fn fields(op: &str, params: &Value) -> Value {
    let mut fields = json!({});
    for (name, value) in params.as_object().into_iter().flatten() {
        let field = match (op, name.as_str()) {
            ("top_k", "k") => "top_k",
            ("top_p", "p") => "top_p",
            ("xtc", "threshold") => "xtc_threshold",
            ("xtc", "probability") => "xtc_probability",
            (_, "op" | "end_ids" | "uniform") => continue,
            (_, same) => same,
        };
        fields[field] = value.clone();
    }
    fields
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

#[test]
fn worked_vectors() {
    let all: Value =
        serde_json::from_str(include_str!("../../../tests/vectors.json")).unwrap_or_default();
    let mut checked = 0;
    for vector in all["vectors"].as_array().into_iter().flatten() {
        let (id, op, params) = (&vector["id"], vector["op"].as_str(), &vector["params"]);
        let params = match op {
            Some(
                op @ ("temperature" | "top_k" | "top_p" | "min_p" | "xtc" | "select" | "draw"),
            ) => fields(op, params),
            // The steps of these stand in our order.
            Some("chain") if *id == "CH03" || *id == "CH05" => {
                let mut joined = json!({});
                for step in params["steps"].as_array().into_iter().flatten() {
                    let step_fields = fields(step["op"].as_str().unwrap_or_default(), step);
                    for (name, value) in step_fields.as_object().into_iter().flatten() {
                        joined[name] = value.clone();
                    }
                }
                joined
            }
            _ => continue,
        };
        assert!(
            serde_json::from_value::<Params>(params.clone()).is_ok(),
            "{id}: {params}"
        );
        let logits = row(&vector["logits"]);
        let end_ids = ids(&vector["params"]["end_ids"]);
        let u = vector["params"]["uniform"].as_f64().unwrap_or(0.5);
        if vector["kept_ids"].is_array() {
            assert_eq!(
                kept(&params, &end_ids, &logits),
                ids(&vector["kept_ids"]),
                "{id}"
            );
        } else if let Some(token) = vector["expected_token"].as_u64() {
            assert_eq!(
                choose(&params, &end_ids, &logits, u),
                Some(token as TokenId),
                "{id}"
            );
        } else if vector["expected_logits"].is_array() {
            // The changed row without further change must draw alike.
            let scaled = row(&vector["expected_logits"]);
            for u in (0..256).map(|i| f64::from(i) / 256.0) {
                let expected = choose(&json!({}), &[], &scaled, u);
                assert_eq!(choose(&params, &[], &logits, u), expected, "{id} at {u}");
            }
        } else {
            assert_eq!(vector["expected_error"], "all_masked", "{id}");
            assert_eq!(choose(&params, &end_ids, &logits, u), None, "{id}");
        }
        checked += 1;
    }
    assert_eq!(checked, 39);
}

#[test]
fn greedy_skips_truncation_and_takes_the_lowest_id_of_equals() {
    let params = json!({ "temperature": 0.000_009, "xtc_probability": 1, "min_keep": 2 });
    assert_eq!(choose(&params, &[], &[1.0, 3.0, 3.0], 0.9), Some(1));
}

#[test]
fn xtc_leaves_min_keep_tokens() {
    let quarters = [0.0; 4];
    let fires = json!({ "xtc_probability": 1, "xtc_threshold": 0.25, "min_keep": 2 });
    assert_eq!(kept(&fires, &[], &quarters), [0, 1, 2, 3]);
}

/// The definitions on whole rows, one probability per token.
fn reference(params: &Params, end_ids: &[TokenId], logits: &[f32], u: f64) -> Option<TokenId> {
    let mut order = Slice(logits).in_order();
    let weight =
        |id: &TokenId| (f64::from(logits[*id as usize]) / f64::from(params.temperature)).exp();
    let p = |order: &[TokenId]| -> Vec<f64> {
        let total: f64 = order.iter().map(weight).sum();
        order.iter().map(|id| weight(id) / total).collect()
    };
    if params.top_k > 0 {
        order.truncate((params.top_k as usize).max(params.min_keep));
    }
    if params.top_p < 1.0 {
        let p = p(&order);
        let n = (0..p.len()).find(|&n| p[..n].iter().sum::<f64>() >= params.top_p);
        order.truncate(n.unwrap_or(p.len()).max(params.min_keep));
    }
    if params.min_p > 0.0 {
        let p = p(&order);
        let n = p
            .iter()
            .filter(|&&each| each >= params.min_p * p[0])
            .count();
        order.truncate(n.max(params.min_keep));
    }
    if params.xtc_probability > 0.0 {
        let choices = p(&order)
            .iter()
            .filter(|&&p| p >= params.xtc_threshold)
            .count();
        let goes = choices.saturating_sub(1);
        if order.len() - goes >= params.min_keep
            && !order[..goes].iter().any(|id| end_ids.contains(id))
        {
            order.drain(..goes);
        }
    }
    let mut sum = 0.0;
    let drawn = p(&order).iter().position(|p| {
        sum += p;
        sum > u
    });
    order
        .get(drawn.unwrap_or(order.len().wrapping_sub(1)))
        .copied()
}

prop_compose! {
    fn any_params()(
        temperature in 0.2..4.0_f32,
        top_k in prop_oneof![Just(0), 1..400_i64],
        top_p in prop_oneof![Just(1.0), 0.0..1.0],
        min_p in prop_oneof![Just(0.0), 0.0..0.5],
        xtc_probability in prop_oneof![Just(0.0), Just(1.0)],
        xtc_threshold in 0.001..0.3,
        min_keep in prop_oneof![Just(1_usize), 1..20_usize],
    ) -> Params {
        Params { temperature, top_k, top_p, min_p, xtc_probability, xtc_threshold, min_keep }
    }
}

proptest! {
    #[test]
    fn reads_as_much_of_the_row_as_the_definitions_need(
        params in any_params(),
        logits in prop::collection::vec(
            prop_oneof![8 => (-30..30_i8).prop_map(|l| f32::from(l) / 7.0), 1 => Just(f32::NEG_INFINITY)],
            20..400,
        ),
        end in 0..20_u32,
        u in 0.0..1.0,
    ) {
        let pipeline = Pipeline {
            params: params.clone(),
            end_ids: vec![end],
            vocabulary_size: logits.len(),
        };
        let chosen = pipeline.choose(Slice(&logits), |draw| if draw == 0 { u } else { 0.0 });
        prop_assert_eq!(chosen, reference(&params, &[end], &logits, u));
    }
}
