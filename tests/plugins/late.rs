//! Whose time counts: plans that wait, plans that nobody waits for, and choices
//! that share an instance.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use sluice::engine::{Chain, Plan};
use sluice::plugin::{
    Choices, Limits, OnFault, OpenChain, Registry, Runtime, STACK_BYTES, StageRef,
};

use crate::support::{
    ONE, compiler, component, info, limits, on_guest_thread, open, plugin, stage, stage_in,
    vocabulary,
};

/// A late plan that nobody waits for ends at once, and not at its limit.
#[test]
fn a_plan_ends_when_its_request_is_gone() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            late: Duration::from_hours(1),
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let params = |params: Value| params.as_object().unwrap().clone();
        let plugin = |name: &str| registry.upload(&component(name)).unwrap().plugin;
        let slow = |rounds: u64| {
            let params = params(json!({"rounds": rounds}));
            StageRef {
                on_fault: OnFault::Wait,
                ..StageRef::new(plugin("slow"), params)
            }
        };
        let two = Choices { n: 2, ..ONE };
        let open = |rounds| {
            let sampler = StageRef::new(plugin("sampler"), Map::new());
            let stages = [slow(rounds), sampler];
            let opened = runtime.open(&vocabulary(), &stages, &info(), two);
            opened.unwrap().try_into().ok().unwrap()
        };
        let [mut endless, mut other]: [_; 2] = open(u64::MAX);
        let presences = [endless.take_presence(), other.take_presence()];
        std::thread::scope(|scope| {
            let plan = std::thread::Builder::new().stack_size(STACK_BYTES);
            let plan = plan.spawn_scoped(scope, || endless.plan(&[])).unwrap();
            drop(presences);
            let fault = plan.join().unwrap().unwrap_err();
            assert_eq!((&fault.stage[..], fault.kind), ("slow", "late"), "{fault}");
        });
        assert_eq!(plugin("slow").n_faults(), 0);
        // One choice that is gone is no reason: its neighbour has the same instance.
        let [mut gone, mut stays]: [_; 2] = open(100_000_000);
        drop(gone.take_presence());
        let _presence = stays.take_presence();
        assert_eq!(gone.plan(&[]), Ok(Plan::Sample));
        assert_eq!(stays.plan(&[]), Ok(Plan::Sample));
    });
}

/// The time in which a plan only waited for its turn is part of its limit.
#[test]
fn a_plan_that_waited_for_its_turn_too_long_is_late() {
    on_guest_thread(|| {
        let mut recorder = stage("recorder", json!({"report_after": 9}));
        recorder.on_fault = OnFault::Wait;
        let stages = [recorder, stage("sampler", json!({"temperature": 0}))];
        let mut chain = open(&stages).unwrap();
        assert_eq!(chain.plan_after(Duration::ZERO, &[]), Ok(Plan::Sample));
        let fault = chain.plan_after(limits().late, &[7]).unwrap_err();
        assert_eq!(
            (&fault.stage[..], fault.kind),
            ("recorder", "late"),
            "{fault}"
        );
    });
}

/// A step waits for all choices of a request: for one whose others have taken longer
/// than a plan may it does not, and nobody is to blame. Less takes no time from it.
#[test]
fn a_plan_behind_those_of_other_choices_for_too_long_is_late() {
    on_guest_thread(|| {
        let stages = [
            stage("recorder", json!({"report_after": 9})),
            stage("sampler", json!({"temperature": 0})),
        ];
        let limit = limits().call;
        let mut chain = open(&stages).unwrap();
        assert_eq!(chain.plan_after(limit / 2, &[]), Ok(Plan::Sample));
        let fault = chain.plan_after(limit * 2, &[7]).unwrap_err();
        assert_eq!(
            (&fault.stage[..], fault.kind),
            ("recorder", "late"),
            "{fault}"
        );
        assert_eq!(plugin("recorder").n_faults(), 0);
    });
}

/// The other choices' time at an instance is not a choice's own: it would count one,
/// two, three and four times, ten in all for the four that there were.
#[test]
fn choices_do_not_pay_for_each_other() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            call: Duration::from_mins(10),
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let stages = [
            stage_in(&registry, "slow", json!({"rounds": 100_000_000})),
            stage_in(&registry, "sampler", json!({})),
        ];
        let four = Choices { n: 4, ..ONE };
        let mut chains = runtime.open(&vocabulary(), &stages, &info(), four).unwrap();
        let reports: Vec<_> = chains.iter().map(OpenChain::report).collect();
        let started = Instant::now();
        std::thread::scope(|scope| {
            for chain in &mut chains {
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                thread
                    .spawn_scoped(scope, || assert_eq!(chain.plan(&[]), Ok(Plan::Sample)))
                    .unwrap();
            }
        });
        let there_was = started.elapsed().as_micros() as u64;
        let taken: u64 = reports.iter().map(|it| it.stages()[0].microseconds).sum();
        // Between the calls they may run side by side.
        assert!(taken < 2 * there_was, "{taken} of {there_was} µs");
        assert!(taken > 0);
    });
}
