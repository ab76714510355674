//! The worked numbers of `vectors.json` hold in the shipped components.
//!
//! Each case is run twice, as a replay (everything accepted in one call) and
//! token by token. Truncating samplers are observed from outside: over many
//! positions the token drawn must be the one that the expected set, the
//! expected logits and the published generator give.
#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "vectors/asked.rs"]
mod asked;
#[path = "vectors/case.rs"]
mod case;
#[path = "vectors/definitions.rs"]
mod definitions;
mod support;

use asked::{Asked, asked, is_token_stage};
use case::{Row, ids, numbers, rows};
use definitions::{AdaptiveP, Mirostat, drawn, share};
use serde_json::{Value, json};
use sluice::{
    engine::{
        Chain, EVENT_BUFFER, EngineConfig, Event, LogprobOptions, LogprobsOf, Model, ModelInfo,
        Submission, Token, TokenId, fake::ScriptedModel, spawn,
    },
    plugin::{OpenError, SequenceInfo},
};
use std::{collections::BTreeSet, convert::Infallible};
use support::{Plugins, SHIPPED, numbered_vocabulary, shipped, test_guest, uniform};

const SEED: i64 = 7;
const DRAWS: u32 = 600;

fn open(plugins: &Plugins, row: &Row, asked: &Asked) -> Result<Box<dyn Chain>, OpenError> {
    let vocabulary = numbered_vocabulary(row.logits.len() as u32, vec![]);
    let info = SequenceInfo {
        prompt: row.prompt.clone(),
        max_tokens: 4000,
        end_ids: asked.end_ids.clone(),
    };
    plugins.open(&vocabulary, &asked.stages, &info, SEED)
}

fn close(a: f32, b: f32) -> bool {
    // Equal infinities have no difference.
    a.total_cmp(&b).is_eq() || (a - b).abs() <= 1e-5 * a.abs().max(1.0)
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
            .finish_values(&mut row.logits.clone())
            .map_err(|e| e.to_string())?;
        let expected = if asked.temperature < 1e-5 {
            drawn(logits, kept, 0.0)
        } else {
            drawn(logits, kept, uniform(SEED, position, 0, 0, 0))
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
        .find(|id| !seen.contains(id) && share(logits, kept, **id) * f64::from(DRAWS) > 20.0);
    match missing {
        Some(id) if asked.temperature >= 1e-5 => Err(format!("{id} is never drawn")),
        _ => Ok(()),
    }
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
            chain
                .finish_values(&mut row.logits.clone())
                .map_err(fault)?;
            chain.plan(&[*token]).map_err(fault)?;
        }
    }
    let mut logits = row.logits.clone();
    let token = chain.finish_values(&mut logits).map_err(fault)?;
    Ok((logits, token))
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
    let finite = |logits: &[f32]| -> Vec<TokenId> {
        let ids = (0..).zip(logits).filter(|(_, l)| l.is_finite());
        ids.map(|(id, _)| id).collect()
    };
    match (&row.kept_ids, &row.expected_logits, row.expected_token) {
        (Some(kept), None, _) if !tokens_only => {
            let scale = |l: &f32| l / asked.temperature as f32;
            let scaled: Vec<f32> = row.logits.iter().map(scale).collect();
            check_draws(plugins, row, &asked, &scaled, kept)
        }
        (kept, Some(logits), _) if !tokens_only => {
            let finite = finite(logits);
            check_draws(
                plugins,
                row,
                &asked,
                logits,
                kept.as_ref().unwrap_or(&finite),
            )
        }
        (None, Some(logits), Some(token)) => {
            let best = drawn(logits, &finite(logits), 0.0);
            (best == token)
                .then_some(())
                .ok_or(format!("best {best}, expected {token}"))
        }
        _ => Ok(()),
    }
}

/// Draws once at position 0, under a seed whose number lies close to the
/// case's.
fn check_draw(plugins: &Plugins, case: &Value) -> Result<(), String> {
    let u = case["params"]["uniform"].as_f64().unwrap();
    // As many seeds as make one within 10⁻⁶ all but certain.
    let near = |seed: &i64| (uniform(*seed, 0, 0, 0, 0) - u).abs() < 1e-6;
    let seed = (0..20_000_000).find(near).ok_or("no seed is near")?;
    let row = rows(case).remove(0);
    let asked = asked(plugins, &row.steps)?;
    let vocabulary = numbered_vocabulary(row.logits.len() as u32, vec![]);
    let info = SequenceInfo {
        prompt: row.prompt,
        max_tokens: 1,
        end_ids: vec![],
    };
    let mut chain = plugins
        .open(&vocabulary, &asked.stages, &info, seed)
        .map_err(|e| e.to_string())?;
    chain.plan(&[]).map_err(|e| e.to_string())?;
    let token = chain
        .finish_values(&mut row.logits.clone())
        .map_err(|e| e.to_string())?;
    (Some(token) == row.expected_token)
        .then_some(())
        .ok_or(format!("{token} drawn under seed {seed}"))
}

/// Verifies a draft row by row: in one chain, and with everything accepted at
/// once.
fn check_draft(plugins: &Plugins, case: &Value) -> Result<(), String> {
    let draft = ids(&case["params"]["draft"]);
    let generated = ids(&case["generated_tokens"]);
    let row = |i: usize| Row {
        prompt: ids(&case["prompt_tokens"]),
        generated: [&generated[..], &draft[..i]].concat(),
        logits: numbers(&case["logits"][i]),
        steps: case["params"]["steps"].as_array().unwrap().clone(),
        expected_logits: Some(numbers(&case["expected_logits"][i])),
        kept_ids: None,
        expected_token: None,
    };
    let asked = asked(plugins, &row(0).steps)?;
    let mut chain = open(plugins, &row(0), &asked).map_err(|e| e.to_string())?;
    let mut accepted = generated.clone();
    for i in 0..=draft.len() {
        check_row(plugins, &row(i))?;
        chain.plan(&accepted).map_err(|e| e.to_string())?;
        let mut logits = row(i).logits;
        chain
            .finish_values(&mut logits)
            .map_err(|e| e.to_string())?;
        let expected = row(i).expected_logits.unwrap();
        if !logits.iter().zip(&expected).all(|(a, b)| close(*b, *a)) {
            return Err(format!("row {i}: {logits:?}, expected {expected:?}"));
        }
        accepted = draft.get(i).copied().into_iter().collect();
    }
    Ok(())
}

/// A sampler that keeps state: at every position the token must be the one
/// that `expected` gives for that position's number.
fn check_stateful(
    plugins: &Plugins,
    case: &Value,
    plugin: &str,
    params: Value,
    mut expected: impl FnMut(f64) -> TokenId,
) -> Result<(), String> {
    let asked = Asked {
        stages: vec![plugins.stage(plugin, params)?],
        end_ids: vec![],
        temperature: 1.0,
    };
    let row = Row {
        steps: vec![],
        ..rows(case).remove(0)
    };
    let mut chain = open(plugins, &row, &asked).map_err(|e| e.to_string())?;
    let mut accepted = vec![];
    for position in 0..DRAWS {
        chain.plan(&accepted).map_err(|e| e.to_string())?;
        let token = chain
            .finish_values(&mut row.logits.clone())
            .map_err(|e| e.to_string())?;
        let expected = expected(uniform(SEED, position, 0, 0, 0));
        if token != expected {
            return Err(format!("{position}: {token} drawn, {expected} expected"));
        }
        accepted = vec![token];
    }
    Ok(())
}

/// The worked numbers hold for the plain arithmetic, and that for the
/// component, whose bound cannot be seen, over many draws.
fn check_mirostat(plugins: &Plugins, case: &Value) -> Result<(), String> {
    let number = |name: &str| case["params"].get(name).and_then(Value::as_f64);
    let logits = numbers(&case["logits"]);
    let mut state = Mirostat {
        mu: number("mu").unwrap(),
        tau: number("tau").unwrap_or(1.0),
        eta: number("eta").unwrap_or(0.1),
    };
    let kept = state.kept(&logits);
    if let Some(expected) = case.get("kept_ids") {
        assert_eq!(kept, ids(expected));
    }
    if let Some(token) = number("token") {
        state.learn(&logits, &kept, token as TokenId);
        let expected = case["expected_mu"].as_f64().unwrap();
        assert!((state.mu - expected).abs() < 1e-5, "{}", state.mu);
    }
    // The case's bound of 2 bits is where τ = 1 starts; a larger η moves it
    // past the others.
    for (tau, eta) in [(1.0, 0.1), (1.0, 1.0), (1.6, 0.4)] {
        let mut state = Mirostat {
            mu: 2.0 * tau,
            tau,
            eta,
        };
        let params = json!({"mirostat": 2, "mirostat_tau": tau, "mirostat_eta": eta});
        check_stateful(plugins, case, "mirostat", params, |u| {
            let kept = state.kept(&logits);
            let token = drawn(&logits, &kept, u);
            state.learn(&logits, &kept, token);
            token
        })?;
    }
    Ok(())
}

/// As for mirostat. The case's sums are those that a target of 0.3 and a decay
/// of 0.9 start with.
fn check_adaptive_p(plugins: &Plugins, case: &Value) -> Result<(), String> {
    let number = |name: &str| case["params"][name].as_f64().unwrap();
    let logits = numbers(&case["logits"]);
    let (target, decay) = (number("target"), number("decay"));
    let mut state = AdaptiveP {
        target,
        decay,
        weighted_sum: number("weighted_sum"),
        total_weight: number("total_weight"),
    };
    for (l, expected) in logits.iter().zip(numbers(&case["expected_logits"])) {
        // The logits are of probabilities that sum to 1.
        let changed = state.changed(f64::from(*l).exp()) as f32;
        assert!(close(expected, changed), "{changed}, not {expected}");
    }
    let params = json!({"adaptive_target": target, "adaptive_decay": decay});
    check_stateful(plugins, case, "adaptive-p", params, |u| {
        state.draw(&logits, u)
    })
}

/// What a constant model says, greedily, under the real engine and the real
/// chain.
fn run_constant(
    plugins: &Plugins,
    case: &Value,
    pipeline: &[Value],
    steps: u32,
    n_top: Option<u32>,
) -> Result<Vec<Token>, String> {
    let logits = numbers(&case["logits"]);
    let width = logits.len() as u32;
    let mut asked = asked(plugins, pipeline)?;
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
            logprobs: n_top.map(|n_top| LogprobOptions {
                n_top,
                of: LogprobsOf::Raw,
                prompt: false,
            }),
            events,
        })
        .unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = receiver.blocking_recv() {
        match event {
            Event::Tokens(more) => tokens.extend(more),
            Event::Cached(_) => {}
            _ => break,
        }
    }
    Ok(tokens)
}

fn check_greedy_run(plugins: &Plugins, case: &Value) -> Result<(), String> {
    let steps = case["params"]["steps"].as_u64().unwrap() as u32;
    let pipeline = case["params"]["pipeline"].as_array().unwrap();
    let tokens = run_constant(plugins, case, pipeline, steps, None)?;
    let tokens: Vec<_> = tokens.iter().map(|token| token.id).collect();
    let expected = ids(&case["expected_tokens"]);
    (tokens == expected)
        .then_some(())
        .ok_or(format!("{tokens:?}, expected {expected:?}"))
}

fn check_logprobs(plugins: &Plugins, case: &Value) -> Result<(), String> {
    let expected = numbers(&case["expected_logprobs"]);
    let tokens = run_constant(plugins, case, &[], 1, Some(expected.len() as u32))?;
    let found = tokens[0].logprobs.as_ref().ok_or("no logprobs")?;
    let best = ids(&case["top_ids"]);
    let listed: Vec<_> = found.top.iter().map(|(id, _)| *id).collect();
    let near = |(id, logprob): &(TokenId, f64)| close(expected[*id as usize], *logprob as f32);
    (listed.starts_with(&best) && found.top.len() == expected.len() && found.top.iter().all(near))
        .then_some(())
        .ok_or(format!("{found:?}, expected {expected:?}"))
}

fn check(plugins: &Plugins, case: &Value) -> Result<(), String> {
    match case["op"].as_str().unwrap() {
        "greedy_run" => return check_greedy_run(plugins, case),
        "logprobs" => return check_logprobs(plugins, case),
        "spec_verify" => return check_draft(plugins, case),
        "draw" => return check_draw(plugins, case),
        "mirostat_step" => return check_mirostat(plugins, case),
        "adaptive_p_step" => return check_adaptive_p(plugins, case),
        _ => {}
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
            match chain.finish_values(&mut row.logits.clone()) {
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
    assert_eq!(passed, 122);
}

/// The run above is no tautology: a `penalties` that counts the prompt, as
/// several servers did, fails it.
#[test]
fn a_component_with_one_formula_changed_fails() {
    // Its version is the newer one.
    let mut components = SHIPPED.map(shipped).to_vec();
    components.push(test_guest("mutant-penalties"));
    let plugins = Plugins::new(&components);
    let (passed, failed) = run(&plugins);
    assert!(passed > 0);
    for id in ["PF01", "PF07", "CH01"] {
        assert!(
            failed.iter().any(|f| f.starts_with(id)),
            "{id} passed: {failed:#?}"
        );
    }
}
