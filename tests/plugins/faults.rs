//! What happens when a stage misbehaves: its own request ends with a fault
//! that names it and the cause, and nothing else is hurt.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sluice::engine::{Chain, Fault, Plan, TokenId};
use sluice::plugin::{Breaker, Choices, Limits, OnFault, OpenError, Registry, Runtime, StageRef};

use crate::support::{
    ONE, TOKENIZER_SIZE, VOCABULARY_SIZE, compiler, component, info, limits, on_guest_thread, open,
    open_choices, row, runtime, stage, stage_in, vocabulary,
};

/// Never: no sequence of these tests is so long.
const NEVER: u32 = u32::MAX;

const TOKEN: &str = "misbehave-token";
const LOGITS: &str = "misbehave-logits";
const SAMPLER: &str = "misbehave-sampler";

/// A stage that commits a fault once `after` tokens are generated.
fn misbehave(plugin: &str, fault: &str, after: u32) -> StageRef {
    stage(plugin, json!({"fault": fault, "after": after}))
}

/// A chain in which one stage misbehaves; id 1 is banned in it.
fn chain_with(plugin: &str, fault: &str, after: Option<u32>) -> Vec<StageRef> {
    let params = match after {
        Some(after) => json!({"fault": fault, "after": after}),
        None => json!({"fault": fault}),
    };
    let ban = stage("rules", json!({"logit_bias": {"3": 1}, "bad_words": [[1]]}));
    let stage = stage(plugin, params);
    match plugin {
        SAMPLER => vec![ban, stage],
        _ => vec![ban, stage, misbehave(SAMPLER, "none", NEVER)],
    }
}

/// One position: the token, or the fault of `plan` or `finish`.
fn step(chain: &mut dyn Chain, accepted: &[TokenId], best: TokenId) -> Result<TokenId, Fault> {
    assert_eq!(chain.plan(accepted)?, Plan::Sample);
    chain.finish_values(&mut row(best))
}

/// The fault that a stage makes at its second position.
fn fault_in_call(plugin: &str, fault: &str) -> Fault {
    let mut chain = open(&chain_with(plugin, fault, Some(1))).unwrap();
    assert_eq!(step(&mut *chain, &[], 7), Ok(7), "{plugin} {fault}");
    step(&mut *chain, &[7], 7).expect_err(fault)
}

fn fault_in_open(plugin: &str, fault: &str) -> Fault {
    match open(&chain_with(plugin, fault, None)) {
        Err(OpenError::Fault(fault)) => fault,
        Err(other) => panic!("{plugin} {fault}: {other}"),
        Ok(_) => panic!("{plugin} {fault}: opened"),
    }
}

fn assert_fault(found: &Fault, stage: &str, kind: &str, words: &str) {
    assert_eq!((found.stage.as_str(), found.kind), (stage, kind), "{found}");
    assert!(found.message.contains(words), "{found}");
}

/// Faults that any kind of plugin can commit in any of its calls.
const COMMON: [(&str, &str, &str); 7] = [
    ("spin", "deadline", "longer than its limit"),
    ("trap", "trap", "unreachable"),
    ("panic", "trap", "asked to panic"),
    ("recurse", "trap", "recursed"),
    ("grow", "memory", "memory would grow"),
    ("flood", "deadline", "longer than its limit"),
    ("error", "error", "asked to fail"),
];

#[test]
fn common_faults_in_a_call() {
    on_guest_thread(|| {
        for plugin in [TOKEN, LOGITS, SAMPLER] {
            for (fault, kind, words) in COMMON {
                assert_fault(&fault_in_call(plugin, fault), plugin, kind, words);
            }
        }
    });
}

#[test]
fn common_faults_in_open() {
    on_guest_thread(|| {
        for plugin in [TOKEN, LOGITS, SAMPLER] {
            for (fault, kind, words) in COMMON {
                let kind = if kind == "error" { "open" } else { kind };
                assert_fault(&fault_in_open(plugin, fault), plugin, kind, words);
            }
        }
    });
}

#[test]
fn faults_in_prepare() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            max_instances: 4,
            prepare: limits().call,
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let sampler = stage_in(&registry, "sampler", json!({}));
        for (name, kind) in [("spin-prepare", "deadline"), ("trap-prepare", "trap")] {
            let stages = [stage_in(&registry, name, json!({})), sampler.clone()];
            match runtime.open(&vocabulary(), &stages, &info(), ONE) {
                Err(OpenError::Fault(fault)) => assert_fault(&fault, name, kind, "prepare"),
                Err(other) => panic!("{name}: {other}"),
                Ok(_) => panic!("{name}: opened"),
            }
        }
    });
}

#[test]
fn faults_of_token_processors() {
    on_guest_thread(|| {
        for (fault, kind, words) in [
            ("nan-edit", "invalid_edit", "NaN"),
            ("infinite-edit", "invalid_edit", "inf"),
            ("outside-edit", "invalid_edit", "64"),
            ("unequal-edit", "invalid_edit", "2 ids and 1 values"),
            ("zero-divisor", "invalid_edit", "divisor 0"),
            ("outside-deny", "invalid_edit", "`deny`"),
            ("force-nothing", "invalid_decision", "empty"),
            ("force-outside", "invalid_decision", "64"),
            ("decide-twice", "invalid_decision", "already"),
            ("deny-all", "all_banned", "last token"),
        ] {
            assert_fault(&fault_in_call(TOKEN, fault), TOKEN, kind, words);
        }
    });
}

#[test]
fn faults_of_logits_processors() {
    on_guest_thread(|| {
        for (fault, kind, words) in [
            ("nan-row", "invalid_row", "NaN"),
            ("infinite-row", "invalid_row", "inf"),
            ("short-row", "invalid_row", "63 values"),
            ("long-row", "invalid_row", "65 values"),
            ("banned-row", "all_banned", "last token"),
            ("edit-and-row", "invalid_edit", "one of them"),
            ("nan-edit", "invalid_edit", "NaN"),
            ("deny-all", "all_banned", "last token"),
            ("zero-temperature", "invalid_call", "temperature 0"),
        ] {
            assert_fault(&fault_in_call(LOGITS, fault), LOGITS, kind, words);
        }
    });
}

#[test]
fn faults_of_samplers() {
    on_guest_thread(|| {
        for (fault, kind, words) in [
            ("outside", "banned_token", "64"),
            ("banned", "banned_token", "banned"),
            ("zero-temperature", "invalid_call", "temperature 0"),
        ] {
            assert_fault(&fault_in_call(SAMPLER, fault), SAMPLER, kind, words);
        }
    });
}

#[test]
fn imports_at_the_wrong_time() {
    on_guest_thread(|| {
        for (plugin, fault, words) in [
            (TOKEN, "deny", "`deny` may be called in plan, process only"),
            (TOKEN, "nan-edit", "`add` may be called in"),
            (TOKEN, "force", "`force` may be called in plan only"),
            (LOGITS, "deny", "`deny` may be called in"),
            (
                LOGITS,
                "read",
                "`row` may be called in process, sample only",
            ),
            (SAMPLER, "read", "`top` may be called in"),
        ] {
            assert_fault(&fault_in_open(plugin, fault), plugin, "invalid_call", words);
        }
    });
}

#[test]
fn a_new_row_cannot_raise_a_banned_token() {
    on_guest_thread(|| {
        let ban = stage("rules", json!({"bad_words": [[0], [1]]}));
        let zero = misbehave(LOGITS, "zero-row", 0);
        let stages = [ban, zero, misbehave(SAMPLER, "none", NEVER)];
        let mut chain = open(&stages).unwrap();
        assert_eq!(chain.plan(&[]), Ok(Plan::Sample));
        let mut row = row(7);
        assert_eq!(chain.finish_values(&mut row), Ok(2));
        let mut expected = vec![0.0; VOCABULARY_SIZE as usize];
        expected[..2].fill(f32::NEG_INFINITY);
        expected[TOKENIZER_SIZE as usize..].fill(f32::NEG_INFINITY);
        assert_eq!(row, expected);
    });
}

#[test]
fn a_row_that_no_model_may_give_names_the_model() {
    on_guest_thread(|| {
        let stages = [misbehave(SAMPLER, "none", NEVER)];
        for value in [f32::NAN, f32::INFINITY] {
            let mut chain = open(&stages).unwrap();
            assert_eq!(chain.plan(&[]), Ok(Plan::Sample));
            let mut bad = row(7);
            bad[41] = value;
            let fault = chain.finish_values(&mut bad).unwrap_err();
            assert_fault(&fault, "model", "model_row", "token 41");
        }
        let mut chain = open(&stages).unwrap();
        assert_eq!(chain.plan(&[]), Ok(Plan::Sample));
        let mut empty = vec![f32::NEG_INFINITY; VOCABULARY_SIZE as usize];
        empty[TOKENIZER_SIZE as usize] = 1.0;
        let fault = chain.finish_values(&mut empty).unwrap_err();
        assert_fault(&fault, "model", "all_banned", "");
        let fault = chain.finish_values(&mut [0.0; 3]).unwrap_err();
        assert_fault(&fault, "model", "model_row", "3 logits");
    });
}

#[test]
fn a_trap_ends_the_instance_and_all_its_choices() {
    on_guest_thread(|| {
        let stages = chain_with(TOKEN, "trap", Some(1));
        let mut chains = open_choices(&stages, 0, 2).unwrap();
        assert_eq!(step(&mut *chains[0], &[], 7), Ok(7));
        assert_eq!(step(&mut *chains[1], &[], 7), Ok(7));
        let first = step(&mut *chains[0], &[7], 7).unwrap_err();
        assert_fault(&first, TOKEN, "trap", "unreachable");
        for chain in &mut chains {
            let later = step(&mut **chain, &[7], 7).unwrap_err();
            assert_fault(&later, TOKEN, "ended", "had ended before");
        }
        // The next request has an instance of its own.
        let mut chain = open(&chain_with(TOKEN, "trap", Some(NEVER))).unwrap();
        assert_eq!(step(&mut *chain, &[], 7), Ok(7));
    });
}

#[test]
fn an_error_ends_its_sequence_alone() {
    on_guest_thread(|| {
        let stages = chain_with(TOKEN, "error", Some(1));
        let mut chains = open_choices(&stages, 0, 2).unwrap();
        assert_eq!(step(&mut *chains[0], &[], 7), Ok(7));
        assert!(step(&mut *chains[0], &[7], 7).is_err());
        assert_eq!(step(&mut *chains[1], &[], 9), Ok(9));
    });
}

#[test]
fn the_same_plugin_twice_is_told_apart() {
    on_guest_thread(|| {
        let stages = [
            misbehave(TOKEN, "none", NEVER),
            misbehave(TOKEN, "error", 0),
            misbehave(SAMPLER, "none", NEVER),
        ];
        let fault = step(&mut *open(&stages).unwrap(), &[], 7).unwrap_err();
        assert_eq!(fault.stage, "misbehave-token#1");
    });
}

/// What a well-behaved chain samples over rows that differ by position.
fn run(chain: &mut dyn Chain, mut between: impl FnMut()) -> Vec<TokenId> {
    let mut tokens: Vec<TokenId> = Vec::new();
    for position in 0..6 {
        let accepted = tokens.last().map_or(&[][..], std::slice::from_ref).to_vec();
        assert_eq!(chain.plan(&accepted), Ok(Plan::Sample));
        between();
        let token = chain.finish_values(&mut row(position * 7 % 11)).unwrap();
        tokens.push(token);
        between();
    }
    tokens
}

#[test]
fn neighbours_of_a_fault_are_unaffected() {
    on_guest_thread(|| {
        let neighbour = || {
            let penalties = stage("penalties", json!({"presence_penalty": 1.5}));
            open(&[penalties, stage("sampler", json!({"temperature": 0.9}))]).unwrap()
        };
        let solo = run(&mut *neighbour(), || {});
        for fault in ["trap", "recurse", "grow", "panic"] {
            let mut hurt = 0;
            let beside = run(&mut *neighbour(), || {
                let mut chain = open(&chain_with(TOKEN, fault, Some(0))).unwrap();
                hurt += i32::from(step(&mut *chain, &[], 7).is_err());
            });
            assert_eq!(beside, solo, "{fault}");
            assert_eq!(hurt, 12, "{fault}");
        }
    });
}

/// Stages that fail were called, too.
#[test]
fn a_call_that_fails_counts() {
    on_guest_thread(|| {
        for (plugin, index) in [(TOKEN, 1), (LOGITS, 1), (SAMPLER, 1)] {
            let stages = chain_with(plugin, "trap", Some(1));
            let chains = runtime().open(&vocabulary(), &stages, &info(), ONE);
            let chain = &mut chains.unwrap()[0];
            let report = chain.report();
            assert_eq!(step(chain, &[], 7), Ok(7));
            assert_eq!(step(chain, &[7], 7).unwrap_err().stage, plugin);
            assert_eq!(report.stages()[index].calls, 2, "{plugin}");
        }
    });
}

/// The stage is left out at three positions, and told of all tokens at once
/// when it is opened anew; the fourth fault ends the sequence.
#[test]
fn a_fault_can_be_skipped_three_times() {
    on_guest_thread(|| {
        let mut recorder = stage("recorder", json!({"report_after": 2}));
        recorder.on_fault = OnFault::Skip;
        let stages = [recorder, stage("sampler", json!({"temperature": 0}))];
        let mut chains = runtime()
            .open(&vocabulary(), &stages, &info(), ONE)
            .unwrap();
        let chain = &mut chains[0];
        let report = chain.report();
        assert_eq!(step(chain, &[], 7), Ok(7));
        for position in 1..=4 {
            assert_eq!(step(chain, &[7], 7), Ok(7), "{position}");
        }
        let fault = step(chain, &[7], 7).unwrap_err();
        let told = r#""accepted":[[7,7,7,7,7]]"#;
        assert!(fault.message.contains(told), "{}", fault.message);
        assert_eq!(report.stages()[0].skipped, 3);
    });
}

/// What is wrong with a plan's edits shows on the row; they are taken back.
#[test]
fn edits_that_leave_nothing_can_be_skipped() {
    on_guest_thread(|| {
        let mut deny = misbehave(TOKEN, "deny-all", 1);
        deny.on_fault = OnFault::Skip;
        let stages = [deny, stage("sampler", json!({"temperature": 0}))];
        let mut chains = runtime()
            .open(&vocabulary(), &stages, &info(), ONE)
            .unwrap();
        let chain = &mut chains[0];
        let report = chain.report();
        assert_eq!(step(chain, &[], 7), Ok(7));
        for _ in 0..3 {
            assert_eq!(step(chain, &[7], 7), Ok(7));
        }
        assert_eq!(step(chain, &[7], 7).unwrap_err().kind, "all_banned");
        assert_eq!(report.stages()[0].skipped, 3);
    });
}

/// Each choice has an instance of its own: a trap of one is no fault of another.
#[test]
fn a_trap_can_be_skipped_by_each_choice() {
    on_guest_thread(|| {
        let mut trap = misbehave(TOKEN, "trap", 1);
        trap.on_fault = OnFault::Skip;
        let stages = [trap, stage("sampler", json!({"temperature": 0}))];
        let mut chains = open_choices(&stages, 0, 2).unwrap();
        for chain in &mut chains {
            assert_eq!(step(&mut **chain, &[], 7), Ok(7));
            for _ in 0..3 {
                assert_eq!(step(&mut **chain, &[7], 7), Ok(7));
            }
            let fault = step(&mut **chain, &[7], 7).unwrap_err();
            assert_eq!((&fault.stage[..], fault.kind), (TOKEN, "trap"));
        }
    });
}

/// A stage that is opened anew takes the place that it had: a request goes on
/// the same way when all others are taken.
#[test]
fn a_skipped_stage_has_room_however_many_others_there_are() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            max_instances: 5,
            max_instances_of_one: 2,
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let plugin = |name: &str| registry.upload(&component(name)).unwrap().plugin;
        let params = |params: Value| params.as_object().unwrap().clone();
        let recorder = params(json!({"report_after": 1}));
        let mut recorder = StageRef::new(plugin("recorder"), recorder);
        recorder.on_fault = OnFault::Skip;
        let force = StageRef::new(plugin("force-sampler"), params(json!({"ids": [7]})));
        let two = Choices { n: 2, ..ONE };
        let open =
            |stages: &[StageRef], choices| runtime.open(&vocabulary(), stages, &info(), choices);
        let sampler = registry.upload_builtin(&component("sampler")).unwrap();
        let sampler = StageRef::new(sampler.plugin, params(json!({"temperature": 0})));
        let mut chains = open(&[recorder, sampler], two).unwrap();
        // It has three of the five places, others the rest.
        let force = [force];
        let others = [open(&force, ONE).unwrap(), open(&force, ONE).unwrap()];
        assert!(matches!(open(&force, ONE), Err(OpenError::Full { .. })));
        for chain in &mut chains {
            assert_eq!(step(chain, &[], 7), Ok(7));
            for _ in 0..3 {
                assert_eq!(step(chain, &[7], 7), Ok(7));
            }
            let fault = step(chain, &[7], 7).unwrap_err();
            let told = r#""accepted":[[7,7,7,7]]"#;
            assert!(fault.message.contains(told), "{}", fault.message);
        }
        drop(others);
    });
}

#[test]
fn a_plugin_that_fails_too_often_is_disabled_until_enabled() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            breaker: Breaker {
                faults: 3,
                ..Breaker::default()
            },
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let plugin = registry.upload(&component(TOKEN)).unwrap().plugin;
        let params = json!({"fault": "trap", "after": 0});
        let params = params.as_object().unwrap().clone();
        let sampler = registry
            .upload_builtin(&component("sampler"))
            .unwrap()
            .plugin;
        let stages = [
            StageRef::new(Arc::clone(&plugin), params),
            StageRef::new(sampler, Map::new()),
        ];
        let open = || runtime.open(&vocabulary(), &stages, &info(), ONE);
        for _ in 0..3 {
            assert_eq!(plugin.disabled(), None);
            open().unwrap()[0].plan(&[]).unwrap_err();
        }
        match open() {
            Err(OpenError::Disabled { stage, message }) => {
                assert_eq!(stage, TOKEN);
                assert!(message.contains("3 times within 60 s"), "{message}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened"),
        }
        assert_eq!(plugin.n_faults(), 3);
        plugin.enable();
        assert!(open().is_ok());
    });
}
