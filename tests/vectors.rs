//! The worked numbers of `vectors.json` hold in the shipped components.
//!
//! Each case is run twice, as a replay (everything accepted in one call) and
//! token by token. Truncating samplers are observed from outside: over many
//! positions the token drawn must be the one that the expected set, the
//! expected logits and the published generator give.
#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Map, Value, json};
use sluice::{
    engine::{
        Chain, EVENT_BUFFER, EngineConfig, Event, Model, ModelInfo, Submission, TokenId,
        fake::ScriptedModel, spawn,
    },
    plugin::{OpenError, SequenceInfo, StageRef},
};
use std::{collections::BTreeSet, convert::Infallible};
use support::{Plugins, numbered_vocabulary, shipped, test_guest, uniform};

/// Operations whose plugins exist.
const COVERED: [&str; 15] = [
    "presence_frequency",
    "repetition",
    "logit_bias",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "xtc",
    "greedy_run",
    "batch",
    "select",
    "chain",
    "no_repeat_ngram",
    "bad_words",
    "min_tokens",
];

/// Cases that need what is not there yet.
const LEFT_OUT: [(&str, &str); 1] = [("CH04", "needs the sampler's `order`")];

const DRAWS: u32 = 600;

struct Row {
    prompt: Vec<TokenId>,
    generated: Vec<TokenId>,
    logits: Vec<f32>,
    steps: Vec<Value>,
    expected_logits: Option<Vec<f32>>,
    kept_ids: Option<Vec<TokenId>>,
    expected_token: Option<TokenId>,
}

fn number(value: &Value) -> f32 {
    match value.as_str() {
        Some("-inf") => f32::NEG_INFINITY,
        Some(other) => panic!("not a number here: {other}"),
        None => value.as_f64().unwrap() as f32,
    }
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn ids(value: &Value) -> Vec<TokenId> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|v| v.as_u64().unwrap() as TokenId).collect()
}

/// One operation as a step: `op` beside its parameters.
fn step(op: &str, params: &Value) -> Value {
    let mut step = params.clone();
    step["op"] = op.into();
    step
}

fn rows(case: &Value) -> Vec<Row> {
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

/// What a row's steps ask for: its stages in order, the sampler last.
struct Asked {
    stages: Vec<StageRef>,
    end_ids: Vec<TokenId>,
    temperature: f64,
}

fn asked(plugins: &Plugins, steps: &[Value]) -> Result<Asked, String> {
    let mut stages = Vec::new();
    let mut sampler = Map::new();
    let mut end_ids = Vec::new();
    for step in steps {
        let set = |names: &[(&str, &str)]| -> Value {
            let mut params = Map::new();
            for (theirs, ours) in names {
                if let Some(value) = step.get(*theirs).filter(|v| !v.is_null()) {
                    params.insert((*ours).into(), value.clone());
                }
            }
            params.into()
        };
        end_ids.extend(step.get("end_ids").map(ids).unwrap_or_default());
        end_ids.extend(step.get("stop_token_ids").map(ids).unwrap_or_default());
        let (plugin, params) = match step["op"].as_str().unwrap() {
            "presence_frequency" => (
                "penalties",
                set(&[
                    ("presence", "presence_penalty"),
                    ("frequency", "frequency_penalty"),
                    ("window", "presence_context_size"),
                    ("window", "frequency_context_size"),
                ]),
            ),
            "repetition" => (
                "penalties",
                set(&[
                    ("penalty", "repetition_penalty"),
                    ("window", "repetition_context_size"),
                ]),
            ),
            "logit_bias" => ("rules", set(&[("bias", "logit_bias")])),
            "no_repeat_ngram" => ("rules", set(&[("size", "no_repeat_ngram_size")])),
            "bad_words" => ("rules", set(&[("ids", "bad_words")])),
            "min_tokens" => ("rules", set(&[("min_tokens", "min_tokens")])),
            _ => (
                "sampler",
                set(&[
                    ("temperature", "temperature"),
                    ("k", "top_k"),
                    ("p", "top_p"),
                    ("min_p", "min_p"),
                    ("min_keep", "min_keep"),
                    ("threshold", "xtc_threshold"),
                    ("probability", "xtc_probability"),
                ]),
            ),
        };
        if plugin == "sampler" {
            sampler.extend(params.as_object().unwrap().clone());
        } else {
            stages.push(plugins.stage(plugin, params)?);
        }
    }
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

fn open(plugins: &Plugins, row: &Row, asked: &Asked) -> Result<Box<dyn Chain>, OpenError> {
    let vocabulary = numbered_vocabulary(row.logits.len() as u32, vec![]);
    let info = SequenceInfo {
        prompt: row.prompt.clone(),
        max_tokens: 4000,
        end_ids: asked.end_ids.clone(),
    };
    plugins.open(&vocabulary, &asked.stages, &info, 7)
}

fn close(a: f32, b: f32) -> bool {
    // Equal infinities have no difference.
    a.total_cmp(&b).is_eq() || (a - b).abs() <= 1e-5 * a.abs().max(1.0)
}

/// The token that `u` draws from `kept` with these logits.
fn drawn(logits: &[f32], kept: &[TokenId], u: f64) -> TokenId {
    let mut order = kept.to_vec();
    order.sort_by(|&a, &b| {
        logits[b as usize]
            .total_cmp(&logits[a as usize])
            .then(a.cmp(&b))
    });
    let best = f64::from(logits[order[0] as usize]);
    let mass = |id: TokenId| (f64::from(logits[id as usize]) - best).exp();
    let total: f64 = order.iter().map(|&id| mass(id)).sum();
    let mut sum = 0.0;
    for &id in &order {
        sum += mass(id);
        if sum > u * total {
            return id;
        }
    }
    order[order.len() - 1]
}

/// Draws at many positions; each token must be the expected one.
fn check_draws(
    plugins: &Plugins,
    row: &Row,
    asked: &Asked,
    logits: &[f32],
    kept: &[TokenId],
) -> Result<(), String> {
    let mut chain = open(plugins, row, asked).map_err(|e| e.to_string())?;
    chain.plan(&row.generated).map_err(|e| e.to_string())?;
    let first = row.generated.len() as u32;
    let mut seen = BTreeSet::new();
    for position in first..first + DRAWS {
        let token = chain
            .finish(&mut row.logits.clone())
            .map_err(|e| e.to_string())?;
        let expected = if asked.temperature < 1e-5 {
            drawn(logits, kept, 0.0)
        } else {
            drawn(logits, kept, uniform(7, position, 0, 0, 0))
        };
        if token != expected {
            return Err(format!(
                "position {position}: {token} drawn, {expected} expected"
            ));
        }
        seen.insert(token);
        chain.plan(&[token]).map_err(|e| e.to_string())?;
    }
    // Every kept token of some weight turns up, so the set is no smaller.
    let missing = kept
        .iter()
        .find(|id| !seen.contains(id) && drawn_share(logits, kept, **id) * f64::from(DRAWS) > 20.0);
    match missing {
        Some(id) if asked.temperature >= 1e-5 => Err(format!("{id} is never drawn")),
        _ => Ok(()),
    }
}

fn drawn_share(logits: &[f32], kept: &[TokenId], id: TokenId) -> f64 {
    let weight = |id: &TokenId| f64::from(logits[*id as usize]).exp();
    weight(&id) / kept.iter().map(weight).sum::<f64>()
}

/// The row as the chain left it for the sampler, and the token chosen.
fn edited(
    plugins: &Plugins,
    row: &Row,
    asked: &Asked,
    at_once: bool,
) -> Result<(Vec<f32>, TokenId), String> {
    let mut chain = open(plugins, row, asked).map_err(|e| e.to_string())?;
    let fault = |e: sluice::engine::Fault| e.to_string();
    if at_once {
        chain.plan(&row.generated).map_err(fault)?;
    } else {
        chain.plan(&[]).map_err(fault)?;
        for token in &row.generated {
            chain.finish(&mut row.logits.clone()).map_err(fault)?;
            chain.plan(&[*token]).map_err(fault)?;
        }
    }
    let mut logits = row.logits.clone();
    let token = chain.finish(&mut logits).map_err(fault)?;
    Ok((logits, token))
}

fn is_token_stage(step: &Value) -> bool {
    matches!(
        step["op"].as_str().unwrap(),
        "presence_frequency"
            | "repetition"
            | "logit_bias"
            | "no_repeat_ngram"
            | "bad_words"
            | "min_tokens"
    )
}

fn check_row(plugins: &Plugins, row: &Row) -> Result<(), String> {
    let asked = asked(plugins, &row.steps)?;
    let tokens_only = row.steps.iter().all(is_token_stage);
    for at_once in [true, false] {
        let (logits, token) = edited(plugins, row, &asked, at_once)?;
        if tokens_only {
            if let Some(expected) = &row.expected_logits
                && !logits.iter().zip(expected).all(|(a, b)| close(*b, *a))
            {
                return Err(format!("logits {logits:?}, expected {expected:?}"));
            }
            if let Some(kept) = &row.kept_ids {
                let left: Vec<_> = (0..).zip(&logits).filter(|(_, l)| l.is_finite()).collect();
                let left: Vec<TokenId> = left.into_iter().map(|(i, _)| i).collect();
                if &left != kept {
                    return Err(format!("{left:?} left, expected {kept:?}"));
                }
            }
        } else if let Some(expected) = row.expected_token
            && token != expected
        {
            return Err(format!("token {token}, expected {expected}"));
        }
    }
    let everything: Vec<TokenId> = (0..)
        .zip(&row.logits)
        .filter(|(_, l)| l.is_finite())
        .map(|(id, _)| id)
        .collect();
    match (&row.kept_ids, &row.expected_logits, row.expected_token) {
        (Some(kept), _, _) if !tokens_only => {
            let scaled: Vec<f32> = row
                .logits
                .iter()
                .map(|l| l / asked.temperature as f32)
                .collect();
            check_draws(plugins, row, &asked, &scaled, kept)
        }
        (None, Some(logits), _) if !tokens_only => {
            check_draws(plugins, row, &asked, logits, &everything)
        }
        (None, Some(logits), Some(token)) => {
            let best = drawn(logits, &everything, 0.0);
            (best == token)
                .then_some(())
                .ok_or(format!("best {best}, expected {token}"))
        }
        _ => Ok(()),
    }
}

/// Runs a constant model under the real engine and the real chain.
fn check_greedy_run(plugins: &Plugins, case: &Value) -> Result<(), String> {
    let logits = numbers(&case["logits"]);
    let width = logits.len() as u32;
    let steps = case["params"]["steps"].as_u64().unwrap() as u32;
    let mut asked = asked(plugins, case["params"]["pipeline"].as_array().unwrap())?;
    asked.stages.pop();
    asked
        .stages
        .push(plugins.stage("sampler", json!({"temperature": 0}))?);
    // An empty context is not a prompt: a token that the case does not use.
    let mut prompt = ids(&case["prompt_tokens"]);
    if prompt.is_empty() {
        prompt.push(width);
    }
    let info = ModelInfo {
        vocabulary_size: width + 1,
        tokenizer_size: width + 1,
        end_of_sequence: vec![],
        context_length: 64,
    };
    let (handle, _) = spawn(EngineConfig::default(), info, move || {
        let model = ScriptedModel::new(width as usize + 1, move |_| logits.clone());
        Ok::<_, Infallible>(Box::new(model) as Box<dyn Model>)
    })
    .unwrap();
    let sequence = SequenceInfo {
        prompt: prompt.clone(),
        max_tokens: steps,
        end_ids: vec![],
    };
    let vocabulary = numbered_vocabulary(width + 1, vec![]);
    let chain = plugins
        .open(&vocabulary, &asked.stages, &sequence, 0)
        .map_err(|e| e.to_string())?;
    let (events, mut receiver) = tokio::sync::mpsc::channel(EVENT_BUFFER);
    handle
        .submit(Submission {
            prompt,
            max_tokens: steps,
            end_ids: vec![],
            chain,
            logprobs: None,
            events,
        })
        .unwrap();
    let mut tokens = Vec::new();
    while let Some(Event::Tokens(more)) = receiver.blocking_recv() {
        tokens.extend(more.iter().map(|token| token.id));
    }
    let expected = ids(&case["expected_tokens"]);
    (tokens == expected)
        .then_some(())
        .ok_or(format!("{tokens:?}, expected {expected:?}"))
}

fn check(plugins: &Plugins, case: &Value) -> Result<(), String> {
    if case["op"] == "greedy_run" {
        return check_greedy_run(plugins, case);
    }
    let Some(expected) = case.get("expected_error") else {
        return rows(case)
            .iter()
            .try_for_each(|row| check_row(plugins, row));
    };
    let row = rows(case).remove(0);
    match (expected.as_str().unwrap(), asked(plugins, &row.steps)) {
        // Refused on admission, by the schema or by the plugin itself.
        ("invalid_token_id", Err(_)) => Ok(()),
        ("invalid_token_id", Ok(asked)) => match open(plugins, &row, &asked) {
            Err(OpenError::InvalidParams { .. }) => Ok(()),
            Err(other) => Err(format!("refused, but as {other:?}")),
            Ok(_) => Err("not refused".into()),
        },
        ("all_masked", Ok(asked)) => {
            let mut chain = open(plugins, &row, &asked).map_err(|e| e.to_string())?;
            chain.plan(&[]).map_err(|e| e.to_string())?;
            match chain.finish(&mut row.logits.clone()) {
                Err(fault) if fault.kind == "all_banned" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        }
        (other, _) => Err(format!("unknown expected error {other}")),
    }
}

/// How many cases hold, and those that do not.
fn run(plugins: &Plugins) -> (usize, Vec<String>) {
    let all: Value = serde_json::from_str(include_str!("vectors.json")).unwrap();
    let mut passed = 0;
    let mut failed = Vec::new();
    for case in all["vectors"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        let covered = COVERED.contains(&case["op"].as_str().unwrap());
        if !covered || LEFT_OUT.iter().any(|(left_out, _)| *left_out == id) {
            continue;
        }
        match check(plugins, case) {
            Ok(()) => passed += 1,
            Err(why) => failed.push(format!("{id}: {why}")),
        }
    }
    (passed, failed)
}

#[test]
fn the_published_generator_gives_its_known_answers() {
    for (args, expected) in [
        ((0, 0, 0, 0), 0.399_046_470_848_964_5),
        ((42, 0, 0, 0), 0.612_959_881_189_415_8),
        ((42, 1, 0, 0), 0.987_718_650_914_510_5),
        ((42, 0, 1, 0), 0.261_241_477_795_690_5),
        ((42, 0, 0, 1), 0.010_058_844_724_262_55),
        ((-1, 7, 0, 0), 0.430_190_246_960_820_2),
    ] {
        let (seed, position, choice, draw) = args;
        let found = uniform(seed, position, choice, draw, 0);
        assert!((found - expected).abs() < 1e-15, "{args:?}: {found}");
    }
}

#[test]
fn every_vector_of_the_shipped_stages_holds() {
    let (passed, failed) = run(&Plugins::shipped());
    println!("{passed} vectors passed");
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(passed, 74);
}

/// The run above is no tautology: a `penalties` that counts the prompt, as
/// several servers did, fails it.
#[test]
fn a_component_with_one_formula_changed_fails() {
    let plugins = Plugins::new(&[
        shipped("rules"),
        test_guest("mutant-penalties"),
        shipped("sampler"),
    ]);
    let (passed, failed) = run(&plugins);
    assert!(passed > 0);
    for id in ["PF01", "PF07", "CH01"] {
        assert!(
            failed.iter().any(|f| f.starts_with(id)),
            "{id} passed: {failed:#?}"
        );
    }
}
