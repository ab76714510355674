//! The stages that a case's steps stand for.

use super::{case::ids, support::Plugins};
use serde_json::{Map, Value, json};
use sluice::{engine::TokenId, plugin::StageRef};

/// A row's stages in order, the sampler last.
pub struct Asked {
    pub stages: Vec<StageRef>,
    pub end_ids: Vec<TokenId>,
    pub temperature: f64,
}

/// The plugin of an operation, and a request's names of its parameters.
fn plugin(op: &str) -> (&'static str, &'static [(&'static str, &'static str)]) {
    match op {
        "presence_frequency" => (
            "penalties",
            &[
                ("presence", "presence_penalty"),
                ("frequency", "frequency_penalty"),
                ("window", "presence_context_size"),
                ("window", "frequency_context_size"),
            ],
        ),
        "repetition" => (
            "penalties",
            &[
                ("penalty", "repetition_penalty"),
                ("window", "repetition_context_size"),
            ],
        ),
        "dry" => (
            "dry",
            &[
                ("multiplier", "dry_multiplier"),
                ("base", "dry_base"),
                ("allowed_length", "dry_allowed_length"),
                ("last_n", "dry_range"),
                ("breakers", "dry_sequence_breakers"),
            ],
        ),
        "logit_bias" => ("rules", &[("bias", "logit_bias")]),
        "no_repeat_ngram" => ("rules", &[("size", "no_repeat_ngram_size")]),
        "bad_words" => ("rules", &[("ids", "bad_words")]),
        "min_tokens" => ("rules", &[("min_tokens", "min_tokens")]),
        "top_k" => ("sampler", &[("k", "top_k")]),
        "top_p" => ("sampler", &[("p", "top_p")]),
        "typical" => ("sampler", &[("p", "typical_p"), ("min_keep", "min_keep")]),
        "top_n_sigma" => ("sampler", &[("n", "top_n_sigma")]),
        "epsilon" => ("sampler", &[("epsilon", "epsilon_cutoff")]),
        "eta" => ("sampler", &[("epsilon", "eta_cutoff")]),
        "top_a" => ("sampler", &[("a", "top_a")]),
        "min_p" => ("sampler", &[("min_p", "min_p"), ("min_keep", "min_keep")]),
        "xtc" => (
            "sampler",
            &[
                ("threshold", "xtc_threshold"),
                ("probability", "xtc_probability"),
            ],
        ),
        "dynamic_temperature" => (
            "sampler",
            &[
                ("temperature", "temperature"),
                ("range", "dynatemp_range"),
                ("exponent", "dynatemp_exponent"),
            ],
        ),
        "quadratic" => (
            "sampler",
            &[
                ("smoothing_factor", "smoothing_factor"),
                ("smoothing_curve", "smoothing_curve"),
            ],
        ),
        "temperature" | "select" | "draw" => ("sampler", &[("temperature", "temperature")]),
        other => panic!("no plugin for {other}"),
    }
}

pub fn is_token_stage(step: &Value) -> bool {
    let op = step["op"].as_str().unwrap();
    match op {
        // A dialect's case is about its penalties if it sets any.
        "dialect" => step.get("presence_penalty").is_some(),
        _ => plugin(op).0 != "sampler",
    }
}

/// Steps in order; those of a sampler become its `order`.
pub fn asked(plugins: &Plugins, steps: &[Value]) -> Result<Asked, String> {
    if let [step] = steps
        && step["op"] == "dialect"
    {
        return dialect(plugins, step);
    }
    let mut stages = Vec::new();
    let mut sampler = Map::new();
    let mut order = Vec::new();
    let mut end_ids = Vec::new();
    for step in steps {
        let op = step["op"].as_str().unwrap();
        let (plugin, names) = plugin(op);
        let mut params = Map::new();
        for (theirs, ours) in names {
            if let Some(value) = step.get(*theirs).filter(|v| !v.is_null()) {
                let value = match *ours {
                    // Tokens of the tests are their own decimal id.
                    "dry_sequence_breakers" => ids(value).iter().map(ToString::to_string).collect(),
                    _ => value.clone(),
                };
                params.insert((*ours).into(), value);
            }
        }
        for field in ["end_ids", "stop_token_ids"] {
            end_ids.extend(step.get(field).map(ids).unwrap_or_default());
        }
        if plugin == "sampler" {
            sampler.extend(params);
            order.push(match op {
                "dynamic_temperature" | "quadratic" | "select" | "draw" => "temperature",
                same => same,
            });
        } else {
            stages.push(plugins.stage(plugin, params.into())?);
        }
    }
    if !order.is_empty() {
        sampler.insert("order".into(), json!(order));
    }
    with_sampler(plugins, stages, sampler, end_ids)
}

fn with_sampler(
    plugins: &Plugins,
    mut stages: Vec<StageRef>,
    sampler: Map<String, Value>,
    end_ids: Vec<TokenId>,
) -> Result<Asked, String> {
    let temperature = sampler
        .get("temperature")
        .map_or(1.0, |t| t.as_f64().unwrap());
    stages.push(plugins.stage("sampler", sampler.into())?);
    Ok(Asked {
        stages,
        end_ids,
        temperature,
    })
}

/// The stages that a dialect stands for.
fn dialect(plugins: &Plugins, fields: &Value) -> Result<Asked, String> {
    let (defaults, order, window) = match fields["dialect"].as_str().unwrap() {
        "llama.cpp" => (
            json!({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}),
            json!([
                "top_n_sigma",
                "top_k",
                "typical_p",
                "top_p",
                "min_p",
                "xtc",
                "temperature"
            ]),
            64,
        ),
        "mlx-lm" => (
            json!({"temperature": 0}),
            json!(["top_p", "min_p", "xtc", "top_k", "temperature"]),
            20,
        ),
        other => panic!("unknown dialect {other}"),
    };
    let mut sampler = defaults.as_object().unwrap().clone();
    for name in ["temperature", "top_k", "top_p", "min_p"] {
        if let Some(value) = fields.get(name) {
            sampler.insert(name.into(), value.clone());
        }
    }
    // mlx-lm reads 0 as off.
    if fields["dialect"] == "mlx-lm"
        && sampler
            .get("top_p")
            .is_some_and(|p| p.as_f64() == Some(0.0))
    {
        sampler.remove("top_p");
    }
    sampler.insert("order".into(), order);
    let mut penalties = json!({"history": "all"});
    for (theirs, ours) in [
        ("repetition_penalty", "repetition_penalty"),
        ("repeat_penalty", "repetition_penalty"),
        ("presence_penalty", "presence_penalty"),
        ("frequency_penalty", "frequency_penalty"),
    ] {
        if let Some(value) = fields.get(theirs) {
            penalties[ours] = value.clone();
        }
    }
    for size in ["repetition", "presence", "frequency"].map(|name| format!("{name}_context_size")) {
        let given = fields.get(&size).or(fields.get("repeat_last_n"));
        // llama.cpp's -1 is all, which is our 0.
        let given = given.map_or(window, |size| size.as_i64().unwrap());
        penalties[size] = json!(if given == -1 { 0 } else { given });
    }
    let stages = vec![plugins.stage("penalties", penalties)?];
    with_sampler(plugins, stages, sampler, vec![])
}
