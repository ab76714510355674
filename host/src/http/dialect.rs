//! Dialects: the same parameter names as other engines understand them.
//!
//! A dialect is a preset of the default chain: the order of its stages, the
//! sampler's order, windows, defaults, and which values mean "off". Fields that
//! the request gives win. What it stands for is shown by `GET /v1/dialects`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::Service;
use super::errors::{ApiError, Code};
use super::field_table::DefaultStage::{self, Dry, Grammar, Penalties, Rules, Sampler};
use super::fields::{Fields, Given, as_integer, same};

/// One preset.
pub(super) struct Dialect {
    pub(super) name: &'static str,
    summary: &'static str,
    /// Token processors in the order of the chain.
    pub(super) processors: [DefaultStage; 4],
    /// Parameters of a stage where the request gives none, as JSON.
    defaults: &'static [(DefaultStage, &'static str, &'static str)],
    /// Whether presence and frequency penalties beyond −2…2 are fine.
    any_penalty: bool,
    /// Values that mean something else than in the default dialect.
    values: &'static str,
    /// Rewrites those values.
    adapt: fn(&mut Fields),
    /// Whether a top_k as large as the vocabulary is refused.
    top_k_below_vocabulary: bool,
}

fn as_given(_: &mut Fields) {}

const DIALECTS: [Dialect; 5] = [
    Dialect {
        name: "openai",
        summary: "The default: OpenAI's definitions, and transformers' where OpenAI has none.",
        processors: [Rules, Penalties, Dry, Grammar],
        defaults: &[],
        any_penalty: false,
        values: "As the fields' schemas say.",
        adapt: as_given,
        top_k_below_vocabulary: false,
    },
    Dialect {
        name: "vllm",
        summary: "The default with vLLM's order of truncation.",
        processors: [Rules, Penalties, Dry, Grammar],
        defaults: &[(
            Sampler,
            "order",
            r#"["temperature", "min_p", "top_k", "top_p"]"#,
        )],
        any_penalty: false,
        values: "As in the default dialect.",
        adapt: as_given,
        top_k_below_vocabulary: false,
    },
    Dialect {
        name: "mlx-lm",
        summary: "mlx_lm.sample_utils: greedy unless a temperature is given, which comes last; \
                  penalties over the last 20 tokens of prompt and completion.",
        processors: [Rules, Penalties, Dry, Grammar],
        defaults: &[
            (Penalties, "history", "\"all\""),
            (Penalties, "repetition_context_size", "20"),
            (Penalties, "presence_context_size", "20"),
            (Penalties, "frequency_context_size", "20"),
            (Sampler, "temperature", "0"),
            (
                Sampler,
                "order",
                r#"["top_p", "min_p", "xtc", "top_k", "temperature"]"#,
            ),
        ],
        any_penalty: true,
        values: "top_p 0 and repetition_penalty 0 are off; a top_k as large as the vocabulary is \
                 refused.",
        adapt: adapt_mlx_lm,
        top_k_below_vocabulary: true,
    },
    Dialect {
        name: "llama.cpp",
        summary: "llama-server: its defaults, temperature last, penalties over the last 64 tokens \
                  of prompt and completion.",
        processors: [Rules, Penalties, Dry, Grammar],
        defaults: &[
            (Penalties, "history", "\"all\""),
            (Penalties, "repetition_context_size", "64"),
            (Penalties, "presence_context_size", "64"),
            (Penalties, "frequency_context_size", "64"),
            (Sampler, "temperature", "0.8"),
            (Sampler, "top_k", "40"),
            (Sampler, "top_p", "0.95"),
            (Sampler, "min_p", "0.05"),
            (
                Sampler,
                "order",
                r#"["top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"]"#,
            ),
        ],
        any_penalty: true,
        values: "repeat_last_n is the window of all three penalties; windows: 0 is off, -1 all; \
                 seed -1 is no seed; n_predict -1 is no limit; min_keep 0 is 1.",
        adapt: adapt_llama_cpp,
        top_k_below_vocabulary: false,
    },
    Dialect {
        name: "hf",
        summary: "transformers' generate: top_k 50, repetition before bans.",
        processors: [Penalties, Rules, Dry, Grammar],
        defaults: &[
            (Sampler, "top_k", "50"),
            (
                Sampler,
                "order",
                r#"["temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon", "eta"]"#,
            ),
        ],
        any_penalty: false,
        values: "As in the default dialect.",
        adapt: as_given,
        top_k_below_vocabulary: false,
    },
];

/// The names that `dialect` may have.
pub(super) fn names() -> Vec<&'static str> {
    DIALECTS.iter().map(|dialect| dialect.name).collect()
}

impl Dialect {
    /// Takes `dialect` and rewrites the other fields into the default
    /// dialect's values.
    pub(super) fn read(
        fields: &mut Fields,
        vocabulary_size: u32,
    ) -> Result<&'static Self, ApiError> {
        let dialect = match fields.take("dialect") {
            None => &DIALECTS[0],
            Some(given) if fields.get("chain").is_some() => {
                let message = "`dialect` has no effect beside `chain`, which says it all";
                return Err(ApiError::of(
                    Code::ConflictingFields,
                    given.sent_as,
                    message,
                ));
            }
            Some(given) => DIALECTS
                .iter()
                .find(|dialect| given.value == dialect.name)
                .ok_or_else(|| given.invalid(format_args!("one of {}", names().join(", "))))?,
        };
        (dialect.adapt)(fields);
        dialect.check(fields, vocabulary_size)?;
        Ok(dialect)
    }

    fn check(&self, fields: &Fields, vocabulary_size: u32) -> Result<(), ApiError> {
        let top_k = fields.get("top_k").filter(|_| self.top_k_below_vocabulary);
        if let Some(given) = top_k
            && as_integer(&given.value) >= Some(i128::from(vocabulary_size))
        {
            return Err(given.invalid(format_args!(
                "an integer below the vocabulary's {vocabulary_size} tokens"
            )));
        }
        for name in ["presence_penalty", "frequency_penalty"] {
            let given = fields.get(name).filter(|_| !self.any_penalty);
            if let Some(given) = given
                && !given
                    .value
                    .as_f64()
                    .is_some_and(|p| (-2.0..=2.0).contains(&p))
            {
                return Err(given.invalid("a number of at least -2 and at most 2"));
            }
        }
        Ok(())
    }

    /// What this dialect gives `stage` where the request is silent.
    pub(super) fn defaults(
        &self,
        stage: DefaultStage,
    ) -> impl Iterator<Item = (&'static str, Value)> {
        self.defaults
            .iter()
            .filter(move |(of, ..)| *of == stage)
            // A test reads every default, so none is lost here.
            .filter_map(|(_, name, json)| Some((*name, serde_json::from_str(json).ok()?)))
    }

    fn shown(&self) -> Value {
        let stages = self.processors.iter().chain([&Sampler]);
        let chain: Vec<_> = stages
            .map(|&stage| {
                let params: Map<_, _> = self
                    .defaults(stage)
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect();
                json!({"plugin": stage.plugin(), "params": params})
            })
            .collect();
        json!({
            "name": self.name,
            "summary": self.summary,
            "chain": chain,
            "values": self.values,
        })
    }
}

/// `GET /v1/dialects`: each with the chain it stands for. `dry` and `grammar`
/// join only where a request asks for them; `mirostat` or `adaptive-p` then
/// takes the sampler's place.
pub(super) async fn list(State(_): State<Arc<Service>>) -> Json<Value> {
    let data: Vec<_> = DIALECTS.iter().map(Dialect::shown).collect();
    Json(json!({"object": "list", "data": data}))
}

fn adapt_mlx_lm(fields: &mut Fields) {
    drop_value(fields, "top_p", 0);
    drop_value(fields, "repetition_penalty", 0);
}

/// Each penalty with its window.
const WINDOWS: [(&str, &str); 3] = [
    ("repetition_penalty", "repetition_context_size"),
    ("presence_penalty", "presence_context_size"),
    ("frequency_penalty", "frequency_context_size"),
];

fn adapt_llama_cpp(fields: &mut Fields) {
    drop_value(fields, "seed", -1);
    drop_value(fields, "max_tokens", -1);
    drop_value(fields, "min_keep", 0);
    let last_n = fields.get("repetition_context_size").cloned();
    for (penalty, window) in WINDOWS {
        match fields.take(window).or_else(|| last_n.clone()) {
            Some(given) if means(&given, 0) => {
                fields.take(penalty);
            }
            // Named in errors as the client named it.
            Some(given) => fields.put(Given {
                name: window,
                value: if means(&given, -1) {
                    json!(0)
                } else {
                    given.value
                },
                ..given
            }),
            None => {}
        }
    }
    match fields.take("dry_range") {
        Some(given) if means(&given, 0) => {
            fields.take("dry_multiplier");
        }
        Some(given) if !means(&given, -1) => fields.put(given),
        _ => {}
    }
}

fn means(given: &Given, value: i64) -> bool {
    same(&given.value, &value.into())
}

/// Removes a field with the value that means the same as leaving it out.
fn drop_value(fields: &mut Fields, name: &str, value: i64) {
    if fields.get(name).is_some_and(|given| means(given, value)) {
        fields.take(name);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::field_table::Endpoint;
    use super::*;

    fn read(body: &Value) -> Result<(Fields, &'static Dialect), ApiError> {
        let body = body.as_object().unwrap().clone();
        let mut fields = Fields::admit(body, Endpoint::Completions)?;
        let dialect = Dialect::read(&mut fields, 100)?;
        Ok((fields, dialect))
    }

    #[test]
    fn every_default_is_json() {
        for dialect in &DIALECTS {
            for (_, name, json) in dialect.defaults {
                serde_json::from_str::<Value>(json).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
    }

    #[test]
    fn llama_cpp_has_one_window_for_three_penalties() {
        let window = |body: Value, name: &str| {
            let (fields, _) = read(&body).unwrap();
            fields.get(name).map(|given| given.value.clone())
        };
        let of =
            |n: i64| json!({"dialect": "llama.cpp", "repeat_last_n": n, "presence_penalty": 1});
        for (_, name) in WINDOWS {
            assert_eq!(window(of(2), name), Some(json!(2)), "{name}");
            assert_eq!(window(of(-1), name), Some(json!(0)), "{name}");
        }
        assert_eq!(window(of(0), "presence_penalty"), None);
        assert_eq!(window(of(5), "presence_penalty"), Some(json!(1)));
    }

    #[test]
    fn off_values_of_other_engines_are_dropped() {
        let given = |body: Value, name: &str| read(&body).unwrap().0.get(name).is_some();
        assert!(!given(json!({"dialect": "mlx-lm", "top_p": 0.0}), "top_p"));
        assert!(given(json!({"dialect": "openai", "top_p": 0.0}), "top_p"));
        assert!(!given(json!({"dialect": "llama.cpp", "seed": -1}), "seed"));
        assert!(given(json!({"seed": -1}), "seed"));
        assert!(!given(
            json!({"dialect": "llama.cpp", "n_predict": -1}),
            "max_tokens"
        ));
    }

    #[test]
    fn what_a_dialect_refuses_is_named() {
        for (body, param) in [
            (json!({"dialect": "mlx"}), "dialect"),
            (json!({"dialect": 5}), "dialect"),
            (json!({"dialect": "mlx-lm", "top_k": 100}), "top_k"),
            (json!({"presence_penalty": 2.5}), "presence_penalty"),
            (json!({"frequency_penalty": "1"}), "frequency_penalty"),
            (
                json!({"dialect": "hf", "frequency_penalty": -3}),
                "frequency_penalty",
            ),
        ] {
            let error = read(&body).map(|_| ()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
        read(&json!({"dialect": "mlx-lm", "top_k": 99, "presence_penalty": 9})).unwrap();
    }
}
