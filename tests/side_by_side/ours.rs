//! What we make of a row, with a package's parameters.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use sluice::{
    engine::{ModelInfo, TokenId},
    plugin::{Limits, SequenceInfo, StageRef, Vocabulary},
};
use sluice_plugin::sampling::Pipeline;

use crate::{
    differences::Difference,
    fixture::Op,
    rows::{Row, WIDTHS},
    steps::Steps,
    support::{Plugins, shipped, uniform},
};

const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

pub struct Ours {
    plugins: Plugins,
    /// One for each width.
    vocabularies: [Arc<Vocabulary>; 2],
}

/// Which stages are on, by the names of a package's parameters.
#[derive(Default)]
struct Asked {
    rules: Map<String, Value>,
    penalties: Map<String, Value>,
    dry: Map<String, Value>,
    sampler: Map<String, Value>,
}

impl Asked {
    /// `best` are the ids from the best down, which biases go by.
    fn new(package: &str, params: &Map<String, Value>, best: &[TokenId]) -> Self {
        let mut asked = Self::default();
        for (name, value) in params {
            match name.as_str() {
                "bias" => {
                    let pairs = value.as_array().unwrap().iter();
                    let by_id = pairs.map(|pair| {
                        let id = best[pair[0].as_u64().unwrap() as usize];
                        (id.to_string(), pair[1].clone())
                    });
                    let by_id: Map<_, _> = by_id.collect();
                    asked.rules.insert("logit_bias".into(), by_id.into());
                }
                "min_tokens" | "no_repeat_ngram_size" | "bad_words" => {
                    asked.rules.insert(name.clone(), value.clone());
                }
                "last_n" => {
                    for penalty in ["repetition", "presence", "frequency"] {
                        let window = format!("{penalty}_context_size");
                        asked.penalties.insert(window, value.clone());
                    }
                }
                "history" => {
                    asked.penalties.insert(name.clone(), value.clone());
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
        if asked.sampler.contains_key("xtc_threshold") {
            asked.sampler.insert("xtc_probability".into(), 1.into());
        }
        if !asked.sampler.is_empty() {
            asked.sampler.insert("order".into(), order(package));
        }
        asked
    }
}

/// The package's own.
fn order(package: &str) -> Value {
    match package {
        "mlx-lm" => json!(["top_p", "min_p", "xtc", "top_k", "temperature"]),
        "transformers" => json!([
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "typical_p",
            "epsilon",
            "eta"
        ]),
        _ => json!([
            "top_n_sigma",
            "top_k",
            "typical_p",
            "top_p",
            "min_p",
            "xtc",
            "temperature"
        ]),
    }
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
        let names = [
            "rules",
            "penalties",
            "dry",
            "sampler",
            "mirostat",
            "adaptive-p",
        ];
        Self {
            plugins: Plugins::with_limits(limits, &names.map(shipped)),
            vocabularies: WIDTHS.map(vocabulary),
        }
    }

    /// The logits that are drawn from, negative infinity where a token is
    /// dropped.
    pub fn logits(&self, package: &str, op: &Op, row: &Row) -> Result<Vec<f64>, String> {
        let at = WIDTHS.iter().position(|&w| w == op.width).unwrap();
        let vocabulary = &self.vocabularies[at];
        let mut params = op.params(row.number).clone();
        if let Some(token) = op.records[row.number].drawn {
            return self.second_step(&op.name, &params, row, token, vocabulary);
        }
        let bad_words_too = matches!(op.name.as_str(), "bad_words" | "generate");
        if bad_words_too {
            params.insert("bad_words".into(), json!(bad_words(row)));
        }
        if params.contains_key("presence_penalty") || params.contains_key("frequency_penalty") {
            params.insert("history".into(), "all".into());
        }
        let info = SequenceInfo {
            // Theirs begins a bad word in the prompt, too.
            prompt: if bad_words_too {
                vec![]
            } else {
                row.prompt.clone()
            },
            max_tokens: 4000,
            end_ids: vec![row.best[0], row.best[3]],
        };
        let generated = if bad_words_too {
            row.tokens()
        } else {
            row.generated.clone()
        };

        let asked = Asked::new(package, &params, &row.best);
        let edited = self.edited(&asked, vocabulary, &info, &generated, &row.logits)?;
        if asked.sampler.is_empty() || edited.iter().all(|l| l.is_infinite()) {
            return Ok(edited.iter().map(|&l| l.into()).collect());
        }
        let temperature = params.get("temperature").and_then(Value::as_f64);
        let mut logits = kept(&edited, asked.sampler, &[])?;
        if package == "mlx-lm" {
            // A temperature is an f32.
            let temperature = f64::from(temperature.unwrap_or(1.0) as f32);
            let log_sum_exp = log_sum_exp(&edited) / temperature;
            for logit in &mut logits {
                *logit -= log_sum_exp;
            }
        }
        Ok(logits)
    }

    /// What we make of a row that a package makes something else of.
    pub fn different(&self, difference: &Difference) -> Vec<f64> {
        let logits = difference.logits();
        let asked = Asked::new(&difference.package, &difference.params, &[]);
        let info = SequenceInfo {
            prompt: difference.prompt.clone(),
            max_tokens: 4000,
            end_ids: difference.end_ids.clone(),
        };
        let vocabulary = vocabulary(logits.len());
        let edited = self.edited(&asked, &vocabulary, &info, &difference.generated, &logits);
        kept(&edited.unwrap(), asked.sampler, &difference.end_ids).unwrap()
    }

    /// The row after the components' edits.
    fn edited(
        &self,
        asked: &Asked,
        vocabulary: &Arc<Vocabulary>,
        info: &SequenceInfo,
        generated: &[TokenId],
        logits: &[f32],
    ) -> Result<Vec<f32>, String> {
        let mut logits = logits.to_vec();
        let on = [
            ("rules", &asked.rules),
            ("penalties", &asked.penalties),
            ("dry", &asked.dry),
        ];
        let on = on.into_iter().filter(|(_, params)| !params.is_empty());
        let stages = on.map(|(name, params)| self.plugins.stage(name, params.clone().into()));
        let mut stages = stages.collect::<Result<Vec<StageRef>, _>>()?;
        if stages.is_empty() {
            return Ok(logits);
        }
        stages.push(self.plugins.stage("sampler", json!({"temperature": 0}))?);
        let chain = self.plugins.open(vocabulary, &stages, info, 0);
        let mut chain = chain.map_err(|e| e.to_string())?;
        chain.plan(generated).map_err(|e| e.to_string())?;
        match chain.finish_values(&mut logits) {
            Ok(_) => Ok(logits),
            Err(fault) if fault.kind == "all_banned" => Ok(vec![f32::NEG_INFINITY; logits.len()]),
            Err(fault) => Err(fault.to_string()),
        }
    }

    /// What is drawn from after the package's token; and the component's first
    /// two tokens must be those of the same definition.
    fn second_step(
        &self,
        op: &str,
        params: &Map<String, Value>,
        row: &Row,
        theirs: TokenId,
        vocabulary: &Arc<Vocabulary>,
    ) -> Result<Vec<f64>, String> {
        let plugin = op.replace('_', "-");
        let seed = row.number as i64;
        let stage = self.plugins.stage(&plugin, params.clone().into())?;
        let info = SequenceInfo {
            prompt: row.prompt.clone(),
            max_tokens: 2,
            end_ids: vec![],
        };
        let chain = self.plugins.open(vocabulary, &[stage], &info, seed);
        let mut chain = chain.map_err(|e| e.to_string())?;
        let mut steps = Steps::new(&plugin, params);
        let mut newest = None;
        for position in 0..2 {
            let expected = steps.draw(&row.logits, uniform(seed, position, 0, 0, 0));
            chain.plan(newest.as_slice()).map_err(|e| e.to_string())?;
            let found = chain.finish_values(&mut row.logits.clone());
            let found = found.map_err(|e| e.to_string())?;
            if found != expected {
                return Err(format!("{found} drawn at {position}, not {expected}"));
            }
            steps.follow(&row.logits, found);
            newest = Some(found);
        }

        let mut steps = Steps::new(&plugin, params);
        steps.follow(&row.logits, theirs);
        Ok(steps.logits(&row.logits))
    }
}

/// What the library's stages leave of a row.
fn kept(row: &[f32], params: Map<String, Value>, end_ids: &[TokenId]) -> Result<Vec<f64>, String> {
    let params = serde_json::from_value(params.into()).map_err(|e| e.to_string())?;
    let pipeline = Pipeline::new(params, end_ids, row.len())?;
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
