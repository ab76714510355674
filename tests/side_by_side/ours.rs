//! What we make of a row, with a package's parameters.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use sluice::{
    engine::{ModelInfo, TokenId},
    plugin::{Limits, SequenceInfo, StageRef, Vocabulary},
};
use sluice_plugin::sampling::Pipeline;

use crate::{
    fixture::Op,
    rows::{Row, WIDTHS},
    support::{Plugins, shipped},
};

const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

pub struct Ours {
    plugins: Plugins,
    /// One for each width.
    vocabularies: [Arc<Vocabulary>; 2],
}

/// Which stages an op turns on, by the names of its parameters.
struct Asked {
    rules: Map<String, Value>,
    penalties: Map<String, Value>,
    dry: Map<String, Value>,
    sampler: Map<String, Value>,
}

fn asked(package: &str, op: &Op, row: &Row) -> Asked {
    let mut asked = Asked {
        rules: Map::new(),
        penalties: Map::new(),
        dry: Map::new(),
        sampler: Map::new(),
    };
    for (name, value) in op.params(row.number) {
        match name.as_str() {
            "bias" => {
                let pairs = value.as_array().unwrap().iter();
                let by_id = pairs.map(|pair| {
                    let id = row.best[pair[0].as_u64().unwrap() as usize];
                    (id.to_string(), pair[1].clone())
                });
                asked
                    .rules
                    .insert("logit_bias".into(), Value::Object(by_id.collect()));
            }
            "min_tokens" | "no_repeat_ngram_size" => {
                asked.rules.insert(name.clone(), value.clone());
            }
            "last_n" => {
                for penalty in ["repetition", "presence", "frequency"] {
                    let window = format!("{penalty}_context_size");
                    asked.penalties.insert(window, value.clone());
                }
            }
            penalty if penalty.contains("_penalty") || penalty.contains("_context_size") => {
                asked.penalties.insert(name.clone(), value.clone());
            }
            dry if dry.starts_with("dry_") => {
                asked.dry.insert(name.clone(), value.clone());
            }
            _ => {
                asked.sampler.insert(name.clone(), value.clone());
            }
        }
    }
    if has_bad_words(op) {
        asked.rules.insert("bad_words".into(), json!(bad_words(row)));
    }
    if asked.sampler.contains_key("xtc_threshold") {
        asked.sampler.insert("xtc_probability".into(), 1.into());
    }
    if !asked.sampler.is_empty() {
        asked.sampler.insert("order".into(), order(package));
    }
    asked
}

/// The package's own.
fn order(package: &str) -> Value {
    match package {
        "mlx-lm" => json!(["top_p", "min_p", "xtc", "top_k", "temperature"]),
        "transformers" => json!([
            "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon", "eta"
        ]),
        _ => json!([
            "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"
        ]),
    }
}

fn has_bad_words(op: &Op) -> bool {
    matches!(op.name.as_str(), "bad_words" | "generate")
}

/// As `Row.bad_words` in `record_transformers.py`.
fn bad_words(row: &Row) -> Vec<Vec<TokenId>> {
    let best = &row.best;
    let tokens = [&[0], &row.tokens()[..]].concat();
    let &[.., before, last] = &tokens[..] else {
        unreachable!("a prompt has a token");
    };
    vec![
        vec![best[4]],
        vec![last, best[1]],
        vec![before, last, best[2]],
        vec![best[8], before, last, best[0]],
        vec![last, before, best[3]],
    ]
}

/// Texts `t0`, `t1`, `t2`, `t3` and a breaker, …: every 16th token has one.
fn vocabulary(width: usize) -> Arc<Vocabulary> {
    let mut offsets = vec![0];
    let mut bytes = Vec::new();
    for id in 0..width {
        bytes.extend(format!("t{id}").bytes());
        if id % 16 == 3 {
            bytes.extend(BREAKERS[id / 16 % 4].bytes());
        }
        offsets.push(bytes.len() as u32);
    }
    let info = ModelInfo {
        vocabulary_size: width as u32,
        tokenizer_size: width as u32,
        end_of_sequence: vec![],
        context_length: 4096,
    };
    Arc::new(Vocabulary::new(info, offsets, bytes, vec![], Box::new(|_| vec![])).unwrap())
}

impl Ours {
    pub fn new() -> Self {
        // A deadline that a busy machine keeps.
        let limits = Limits {
            call: Duration::from_secs(5),
            ..Limits::default()
        };
        let components = ["rules", "penalties", "dry", "sampler"].map(shipped);
        Self {
            plugins: Plugins::with_limits(limits, &components),
            vocabularies: WIDTHS.map(vocabulary),
        }
    }

    /// The logits that are drawn from, negative infinity where a token is
    /// dropped.
    pub fn logits(&self, package: &str, op: &Op, row: &Row) -> Result<Vec<f64>, String> {
        let asked = asked(package, op, row);
        let edited = self.edited(op, row, &asked)?;
        let mut logits: Vec<f64> = edited.iter().map(|&l| l.into()).collect();
        if !asked.sampler.is_empty() && edited.iter().any(|l| l.is_finite()) {
            let params = Value::Object(asked.sampler).clone();
            let temperature = params.get("temperature").and_then(Value::as_f64);
            logits = kept(&edited, params)?;
            if package == "mlx-lm" {
                let log_sum_exp = log_sum_exp(&edited) / temperature.unwrap_or(1.0);
                logits.iter_mut().for_each(|l| *l -= log_sum_exp);
            }
        }
        Ok(logits)
    }

    /// The row after the components' edits.
    fn edited(&self, op: &Op, row: &Row, asked: &Asked) -> Result<Vec<f32>, String> {
        let mut logits = row.logits.clone();
        let stages: Vec<StageRef> = [
            ("rules", &asked.rules),
            ("penalties", &asked.penalties),
            ("dry", &asked.dry),
        ]
        .into_iter()
        .filter(|(_, params)| !params.is_empty())
        .map(|(name, params)| self.plugins.stage(name, params.clone().into()))
        .collect::<Result<_, _>>()?;
        if stages.is_empty() {
            return Ok(logits);
        }
        let greedy = self.plugins.stage("sampler", json!({"temperature": 0}))?;
        let (prompt, generated) = self.history(op, row, asked);
        let info = SequenceInfo {
            prompt,
            max_tokens: 4000,
            end_ids: vec![row.best[0], row.best[3]],
        };
        let at = WIDTHS.iter().position(|&w| w == op.width).unwrap();
        let stages = [stages, vec![greedy]].concat();
        let chain = self.plugins.open(&self.vocabularies[at], &stages, &info, 0);
        let mut chain = chain.map_err(|e| e.to_string())?;
        chain.plan(&generated).map_err(|e| e.to_string())?;
        match chain.finish(&mut logits) {
            Ok(_) => Ok(logits),
            Err(fault) if fault.kind == "all_banned" => {
                Ok(vec![f32::NEG_INFINITY; logits.len()])
            }
            Err(fault) => Err(fault.to_string()),
        }
    }

    /// Prompt and generated tokens. Where our default history is the generated
    /// text and the package's all of it, all of it is generated.
    fn history(&self, op: &Op, row: &Row, asked: &Asked) -> (Vec<TokenId>, Vec<TokenId>) {
        let of_all = ["presence_penalty", "frequency_penalty"];
        if has_bad_words(op) || of_all.iter().any(|name| asked.penalties.contains_key(*name)) {
            (vec![], row.tokens())
        } else {
            (row.prompt.clone(), row.generated.clone())
        }
    }
}

/// What the library's stages leave of a row.
fn kept(row: &[f32], params: Value) -> Result<Vec<f64>, String> {
    let params = serde_json::from_value(params).map_err(|e| e.to_string())?;
    let pipeline = Pipeline::new(params, &[], row.len())?;
    let mut kept = pipeline.kept(row, &|_| 0.0).ok_or("all banned")?;
    let mut logits = vec![f64::NEG_INFINITY; row.len()];
    for (id, logit) in kept.ids().into_iter().zip(kept.logits()) {
        logits[id as usize] = logit;
    }
    Ok(logits)
}

pub fn log_sum_exp(row: &[f32]) -> f64 {
    let best = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|&l| (f64::from(l) - best).exp()).sum();
    best + sum.ln()
}
