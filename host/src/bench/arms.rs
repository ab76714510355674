//! Who chooses the tokens: the arms of a comparison, as data.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde_json::{Map, Value, json};

use super::BenchError;
use crate::engine::{Chain, Fault, LogitsRow, Plan, TokenId};

/// Plugins of a chain with their parameters, a JSON object.
type Stages = &'static [(&'static str, &'static str)];

/// Opens a chain of native code.
pub type NativeChain = fn(&NativeSequence<'_>) -> Box<dyn Chain>;

/// What a native chain knows of its sequence.
#[derive(Clone, Copy, Debug)]
pub struct NativeSequence<'a> {
    pub prompt: &'a [TokenId],
    /// Logits of a row.
    pub vocabulary_size: usize,
    pub seed: i64,
}

/// Who chooses the tokens of a batch.
#[derive(Debug)]
pub struct Arm {
    pub(super) name: &'static str,
    about: &'static str,
    /// The arm that must choose the same tokens.
    pub(super) same_as: Option<&'static str>,
    pub(super) chooser: Chooser,
    /// The fields of a request, a JSON object, by which other servers do the
    /// same; without them a request has the chain itself.
    fields: Option<&'static str>,
}

#[derive(Debug)]
pub(super) enum Chooser {
    /// Exists in benches alone.
    Native(NativeChain),
    /// One after the other for the rows of a batch.
    Plugins(&'static [Stages]),
}

impl Arm {
    /// Native code with the logic of another arm, whose tokens it has to choose.
    pub const fn native(
        name: &'static str,
        about: &'static str,
        same_as: &'static str,
        open: NativeChain,
    ) -> Self {
        Self {
            name,
            about,
            same_as: Some(same_as),
            chooser: Chooser::Native(open),
            fields: None,
        }
    }

    const fn plugins(name: &'static str, about: &'static str, chains: &'static [Stages]) -> Self {
        Self {
            name,
            about,
            same_as: None,
            chooser: Chooser::Plugins(chains),
            fields: None,
        }
    }

    const fn with_fields(self, fields: &'static str) -> Self {
        Self {
            fields: Some(fields),
            ..self
        }
    }

    pub(super) fn is_native(&self) -> bool {
        matches!(self.chooser, Chooser::Native(_))
    }

    /// The stages of a row of the batch, each with its parameters; none if it is
    /// native.
    pub(super) fn stages(&self, row: usize) -> Result<Vec<(&'static str, Value)>, BenchError> {
        let Chooser::Plugins(chains) = self.chooser else {
            return Ok(Vec::new());
        };
        let chain = chains[row % chains.len()].iter();
        chain
            .map(|&(plugin, params)| {
                let params = serde_json::from_str(params);
                let params = params.map_err(|error| BenchError::Params { plugin, error })?;
                Ok((plugin, params))
            })
            .collect()
    }

    /// The fields by which a request to a server has this chain and goes on
    /// beyond an end.
    pub(super) fn fields(&self, row: usize) -> Result<Map<String, Value>, BenchError> {
        let goes_on = || ("ignore_eos".to_owned(), Value::Bool(true));
        if let Some(fields) = self.fields {
            let plugin = self.name;
            let fields: Map<_, _> = serde_json::from_str(fields)
                .map_err(|error| BenchError::Params { plugin, error })?;
            return Ok(fields.into_iter().chain([goes_on()]).collect());
        }
        let mut stages = self.stages(row)?;
        if stages.first().is_none_or(|(plugin, _)| *plugin != "rules") {
            stages.insert(0, ("rules", json!({})));
        }
        if let Some((_, Value::Object(rules))) = stages.first_mut() {
            rules.extend([goes_on()]);
        }
        let stages = stages.into_iter();
        let chain = stages.map(|(plugin, params)| json!({"plugin": plugin, "params": params}));
        Ok([("chain".to_owned(), chain.collect())]
            .into_iter()
            .collect())
    }
}

const BIAS: (&str, &str) = ("rules", r#"{"logit_bias": {"100": -1.5, "200": 0.5}}"#);
const PENALTIES: (&str, &str) = (
    "penalties",
    r#"{"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2}"#,
);
const NO_RULES: (&str, &str) = ("rules", "{}");
const NO_PENALTIES: (&str, &str) = ("penalties", "{}");
const BEST: (&str, &str) = ("sampler", r#"{"temperature": 0}"#);
const TRUNCATED: (&str, &str) = (
    "sampler",
    r#"{"temperature": 0.8, "top_k": 40, "top_p": 0.95}"#,
);

const DEFAULT: Stages = &[BIAS, PENALTIES, TRUNCATED];
const DRY: Stages = &[
    NO_RULES,
    NO_PENALTIES,
    ("dry", r#"{"dry_multiplier": 0.8}"#),
    TRUNCATED,
];
const MIROSTAT: Stages = &[
    NO_RULES,
    PENALTIES,
    ("mirostat", r#"{"mirostat_tau": 5, "mirostat_eta": 0.1}"#),
];
const XTC: Stages = &[
    NO_RULES,
    NO_PENALTIES,
    (
        "sampler",
        r#"{"min_p": 0.02, "xtc_probability": 0.5, "xtc_threshold": 0.1}"#,
    ),
];
const MIN_P: Stages = &[
    NO_RULES,
    PENALTIES,
    ("sampler", r#"{"temperature": 1.2, "min_p": 0.05}"#),
];
const TYPICAL: Stages = &[
    NO_RULES,
    NO_PENALTIES,
    ("sampler", r#"{"temperature": 0.9, "typical_p": 0.9}"#),
];
const NO_REPEAT: Stages = &[
    ("rules", r#"{"no_repeat_ngram_size": 3}"#),
    NO_PENALTIES,
    TRUNCATED,
];
const BAD_WORDS: Stages = &[
    (
        "rules",
        r#"{"bad_words": ["the sea", "Paris", "in order to"]}"#,
    ),
    PENALTIES,
    TRUNCATED,
];
/// An array that does not end within any bench.
const LONG_ARRAY: (&str, &str) = (
    "grammar",
    r#"{"json_schema": {
        "type": "array", "minItems": 5000,
        "items": {
            "type": "object", "additionalProperties": false,
            "required": ["name", "year", "kind", "tags"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 24},
                "year": {"type": "integer", "minimum": 0, "maximum": 3000},
                "kind": {"enum": ["ship", "harbour", "storm"]},
                "tags": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 12}}
            }
        }
    }}"#,
);
const GRAMMAR: Stages = &[BIAS, PENALTIES, LONG_ARRAY, TRUNCATED];

/// The arms that `--chain` names.
pub(super) static ARMS: [Arm; 14] = [
    Arm {
        name: "none",
        about: "no plugin: the largest logit, found natively; in this command alone",
        same_as: None,
        chooser: Chooser::Native(|_| Box::new(Largest)),
        fields: None,
    },
    Arm::plugins("sampler", "the sampler alone, at temperature 0", &[&[BEST]]),
    Arm::plugins(
        "tokens",
        "the token processors of `default`, then the sampler at temperature 0",
        &[&[BIAS, PENALTIES, BEST]],
    ),
    Arm::plugins(
        "greedy",
        "the default chain at temperature 0",
        &[&[NO_RULES, NO_PENALTIES, BEST]],
    )
    .with_fields(r#"{"temperature": 0}"#),
    Arm::plugins(
        "default",
        "the default chain with three penalties, a bias, temperature, top-k and top-p",
        &[DEFAULT],
    )
    .with_fields(
        r#"{"logit_bias": {"100": -1.5, "200": 0.5}, "repetition_penalty": 1.1,
            "presence_penalty": 0.5, "frequency_penalty": 0.2, "temperature": 0.8,
            "top_k": 40, "top_p": 0.95}"#,
    ),
    Arm::plugins("dry", "DRY", &[DRY]),
    Arm::plugins("mirostat", "penalties and mirostat", &[MIROSTAT]),
    Arm::plugins("xtc", "min-p and XTC", &[XTC]),
    Arm::plugins("min-p", "penalties and min-p", &[MIN_P]),
    Arm::plugins("typical", "typical-p", &[TYPICAL]),
    Arm::plugins("no-repeat", "no n-gram of three twice", &[NO_REPEAT]),
    Arm::plugins("bad-words", "banned words and penalties", &[BAD_WORDS]),
    Arm::plugins(
        "mixed",
        "`default` and the seven chains from `dry` to `bad-words`, one for each row in turn",
        &[
            DEFAULT, DRY, MIROSTAT, XTC, MIN_P, TYPICAL, NO_REPEAT, BAD_WORDS,
        ],
    ),
    Arm::plugins(
        "grammar",
        "`default` with a JSON Schema whose text does not end",
        &[GRAMMAR],
    ),
];

/// Arms whose steps are compared beyond `none`: with the mean of others.
pub(super) const RATIOS: [(&str, &[&str]); 3] = [
    (
        "mixed",
        &[
            "default",
            "dry",
            "mirostat",
            "xtc",
            "min-p",
            "typical",
            "no-repeat",
            "bad-words",
        ],
    ),
    ("grammar", &["default"]),
    ("default", &["native"]),
];

/// Reads the name of an arm.
pub(super) fn parser() -> impl TypedValueParser<Value = &'static Arm> {
    let values = ARMS
        .iter()
        .map(|arm| PossibleValue::new(arm.name).help(arm.about));
    PossibleValuesParser::new(values).try_map(|name| {
        let found = ARMS.iter().find(|arm| arm.name == name);
        found.ok_or_else(|| format!("no arm is named `{name}`"))
    })
}

/// Takes the largest logit, as fast as it can be found.
struct Largest;

impl Chain for Largest {
    fn plan(&mut self, _accepted: &[TokenId]) -> Result<Plan, Fault> {
        Ok(Plan::Sample)
    }

    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        let fault = |kind, message: String| Fault {
            stage: "none".into(),
            kind,
            message,
        };
        let row = row
            .scan()
            .map_err(|bad| fault("model_row", bad.to_string()))?;
        let none = || fault("all_banned", "every logit is negative infinity".into());
        row.argmax().ok_or_else(none)
    }
}
