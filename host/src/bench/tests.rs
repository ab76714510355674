#![allow(clippy::unwrap_used, clippy::float_cmp)]

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;

use super::arms::{ARMS, RATIOS};
use super::clock::Clock;
use super::report::{Spread, of_rounds};
use super::rounds::{Case, Round, check_same};
use super::{Arm, BenchArgs, BenchError};
use crate::engine::{self, EngineConfig, Event, Model, ModelError, ModelInfo, Submission, fake};

#[derive(Debug, clap::Parser)]
struct Command {
    #[command(flatten)]
    args: BenchArgs,
}

fn arm(name: &str) -> &'static Arm {
    ARMS.iter().find(|arm| arm.name == name).unwrap()
}

#[test]
fn arms_have_names_of_their_own_and_parameters_that_are_objects() {
    let names: HashSet<_> = ARMS.iter().map(|arm| arm.name).collect();
    assert_eq!(names.len(), ARMS.len());
    for arm in ARMS.iter().filter(|arm| !arm.is_native()) {
        for row in 0..8 {
            let stages = arm.stages(row).unwrap();
            assert!(!stages.is_empty(), "{}", arm.name);
            assert!(stages.iter().all(|(_, params)| params.is_object()));
            assert!(!arm.fields(row).unwrap().is_empty());
        }
    }
}

#[test]
fn ratios_are_of_arms() {
    for (name, others) in RATIOS {
        arm(name);
        // The one that the example `native_chain` adds.
        for other in others.iter().filter(|other| **other != "native") {
            arm(other);
        }
    }
}

#[test]
fn the_rows_of_a_mixed_batch_have_the_chains_of_its_parts() {
    let (_, parts) = RATIOS
        .into_iter()
        .find(|(name, _)| *name == "mixed")
        .unwrap();
    for (row, part) in (0..16).zip(parts.iter().cycle()) {
        let own = arm("mixed").stages(row).unwrap();
        assert_eq!(own, arm(part).stages(0).unwrap(), "{part}");
    }
}

#[test]
fn a_request_has_the_fields_or_the_chain_itself() {
    let fields = |name| json!(arm(name).fields(3).unwrap());
    assert_eq!(
        fields("greedy"),
        json!({"temperature": 0, "ignore_eos": true})
    );
    assert_eq!(
        fields("sampler"),
        json!({"chain": [
            {"plugin": "rules", "params": {"ignore_eos": true}},
            {"plugin": "sampler", "params": {"temperature": 0}},
        ]})
    );
    assert_eq!(
        fields("no-repeat")["chain"][0],
        json!({"plugin": "rules", "params": {"no_repeat_ngram_size": 3, "ignore_eos": true}})
    );
}

#[test]
fn arms_are_named_in_a_list() {
    use clap::Parser;
    let parsed = Command::try_parse_from(["bench", "--chain", "none,mixed"]).unwrap();
    let names: Vec<_> = parsed.args.chain.iter().map(|arm| arm.name).collect();
    assert_eq!(names, ["none", "mixed"]);
    assert!(Command::try_parse_from(["bench", "--chain", "nothing"]).is_err());
    assert!(Command::try_parse_from(["bench", "--prefill", "9", "--open", "9"]).is_err());
}

#[test]
fn the_median_of_an_even_number_is_between_the_middle_ones() {
    let spread = Spread::of(vec![4.0, 1.0, 2.0, 7.0]).unwrap();
    assert_eq!((spread.median, spread.least, spread.most), (3.0, 1.0, 7.0));
    assert_eq!(Spread::of(vec![5.0, 9.0, 6.0]).unwrap().median, 6.0);
    assert_eq!(Spread::of(vec![]), None);
}

fn round(step_ms: u64, chain_us: u64) -> Round {
    Round {
        steps: vec![Duration::from_millis(step_ms); 3],
        n_counted: 3,
        counted: Duration::from_millis(3 * step_ms),
        chain: Duration::from_micros(3 * chain_us),
        ..Round::default()
    }
}

/// The machine is twice as slow in the second round and four times in the third:
/// the arm takes 1.1, 1.2 and 1.3 times as long as `none` all the same.
#[test]
fn arms_are_compared_within_a_round() {
    let case = |name| Case {
        batch: 8,
        prompt_tokens: 64,
        arm: arm(name),
    };
    let cases = [case("none"), case("default"), case("grammar")];
    let rounds = [
        vec![round(10, 5), round(20, 5), round(40, 5)],
        vec![round(11, 110), round(24, 240), round(52, 520)],
        vec![round(22, 0), round(48, 0), round(104, 0)],
    ];
    let (figures, table) = of_rounds(&cases, &rounds, vec![20.0, 30.0, 25.0]);
    let default = &figures["rows"][1];
    assert_eq!(default["chain"], "default");
    assert_eq!(default["step_ms_median"], 24.0);
    assert_eq!(default["step_ms_rounds"], json!([11.0, 24.0, 52.0]));
    assert_eq!(default["tokens_per_second"], 8_000.0 / 24.0);
    assert_eq!(
        default["by_none"],
        json!({"median": 1.2, "least": 1.1, "most": 1.3})
    );
    // 110 + 240 + 520 µs of 11 + 24 + 52 ms.
    assert!((default["chain_share"].as_f64().unwrap() - 0.01).abs() < 1e-12);
    assert!((default["chain_us"].as_f64().unwrap() - 290.0).abs() < 1e-9);
    let ratios = figures["ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), 1);
    assert_eq!(ratios[0]["chain"], "grammar");
    assert_eq!(ratios[0]["by"], json!(["default"]));
    assert_eq!(ratios[0]["median"], 2.0);
    assert_eq!(figures["read_gb_per_second"]["median"], 25.0);
    assert!(table.contains("| 8 | 64 | default | 24.00 | 11.00 … 52.00 | 333 | 1.200 (1.100 … 1.300) | 1.00 % | 290 |"), "{table}");
}

/// With the mean of its parts, not with the fastest.
#[test]
fn a_mixed_batch_is_compared_with_the_mean_of_its_parts() {
    let (_, parts) = RATIOS[0];
    let names = ["mixed"].iter().chain(parts);
    let cases: Vec<_> = names
        .map(|name| Case {
            batch: 8,
            prompt_tokens: 64,
            arm: arm(name),
        })
        .collect();
    // 10 to 17 ms, whose mean is 13.5.
    let mut rounds = vec![vec![round(27, 0)]];
    rounds.extend((10..18).map(|ms| vec![round(ms, 0)]));
    let (figures, _) = of_rounds(&cases, &rounds, vec![]);
    assert_eq!(figures["ratios"][0]["median"], 2.0);
    assert_eq!(figures["rows"][0]["by_none"], json!(null));
}

/// Of the last round, and at the same batch and prompt alone.
#[test]
fn native_code_has_to_choose_the_same_tokens() {
    static NATIVE: Arm = Arm::native("native", "", "default", |_| unreachable!());
    let case = |batch, arm| Case {
        batch,
        prompt_tokens: 64,
        arm,
    };
    let of = |tokens: [u32; 2]| {
        vec![Round {
            tokens: tokens.to_vec(),
            ..Round::default()
        }]
    };
    let cases = [
        case(1, arm("default")),
        case(8, arm("default")),
        case(8, &NATIVE),
    ];
    let same = [of([1, 2]), of([3, 4]), of([3, 4])];
    assert!(check_same(&cases, &same).is_ok());
    let different = [of([3, 4]), of([3, 5]), of([3, 4])];
    let error = check_same(&cases, &different).unwrap_err();
    assert!(matches!(
        error,
        BenchError::Differ {
            arm: "native",
            other: "default"
        }
    ));
}

/// Between five tokens there are three whole steps and what follows them, however
/// late they are read, and the prompt's is none of them; the engine ends although
/// chains hold a way to it.
#[test]
fn a_clock_counts_steps_as_they_are_taken() {
    let info = ModelInfo {
        vocabulary_size: 2,
        tokenizer_size: 2,
        end_of_sequence: vec![],
        context_length: 16,
    };
    let config = EngineConfig {
        draft_rows: 0,
        ..EngineConfig::default()
    };
    let build = || {
        let model = fake::ScriptedModel::new(2, |_: &[u32]| vec![0.0, 1.0]);
        Ok::<_, ModelError>(Box::new(model) as Box<dyn Model>)
    };
    let (engine, thread) = engine::spawn(config, info, build).unwrap();
    let clock = Clock::default();
    let (events, mut receiver) = tokio::sync::mpsc::channel(16);
    let submission = Submission {
        prompt: vec![0],
        max_tokens: 5,
        end_ids: vec![],
        chain: clock.around(fake::greedy(), engine.clone()),
        logprobs: None,
        events,
    };
    engine.submit(submission).unwrap();
    while !matches!(receiver.blocking_recv(), Some(Event::Finished(_))) {}
    let (steps, before, after) = clock.steps(3).unwrap();
    assert_eq!(steps.len(), 3);
    assert_eq!((before.steps, after.steps), (1, 4));
    assert!(clock.steps(4).is_none());
    drop(engine);
    thread.join().unwrap();
}
