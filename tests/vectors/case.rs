//! What `vectors.json` writes of a case.

use serde_json::Value;
use sluice::engine::TokenId;

/// One row of a case.
pub struct Row {
    pub prompt: Vec<TokenId>,
    pub generated: Vec<TokenId>,
    pub logits: Vec<f32>,
    pub steps: Vec<Value>,
    pub expected_logits: Option<Vec<f32>>,
    pub kept_ids: Option<Vec<TokenId>>,
    pub expected_token: Option<TokenId>,
}

fn number(value: &Value) -> f32 {
    match value.as_str() {
        Some("-inf") => f32::NEG_INFINITY,
        Some(other) => panic!("not a number here: {other}"),
        None => value.as_f64().unwrap() as f32,
    }
}

pub fn ids(value: &Value) -> Vec<TokenId> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|v| v.as_u64().unwrap() as TokenId).collect()
}

pub fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(number).collect()
}

/// One operation as a step: `op` beside its parameters.
fn step(op: &str, params: &Value) -> Value {
    let mut step = params.clone();
    step["op"] = op.into();
    step
}

pub fn rows(case: &Value) -> Vec<Row> {
    let op = case["op"].as_str().unwrap();
    let many = op == "batch";
    let at = |field: &str, i: usize| -> Option<Value> {
        let value = case.get(field)?;
        Some(if many {
            value[i].clone()
        } else {
            value.clone()
        })
    };
    let count = if many {
        case["logits"].as_array().unwrap().len()
    } else {
        1
    };
    (0..count)
        .map(|i| {
            let params = at("params", i).unwrap();
            let steps = match op {
                "chain" | "batch" => params["steps"].as_array().unwrap().clone(),
                _ => vec![step(op, &params)],
            };
            Row {
                prompt: ids(&at("prompt_tokens", i).unwrap()),
                generated: ids(&at("generated_tokens", i).unwrap()),
                logits: numbers(&at("logits", i).unwrap()),
                steps,
                expected_logits: at("expected_logits", i).as_ref().map(numbers),
                kept_ids: at("kept_ids", i).as_ref().map(ids),
                expected_token: at("expected_token", i).map(|v| v.as_u64().unwrap() as TokenId),
            }
        })
        .collect()
}
