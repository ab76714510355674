//! Room for instances and their memory, and the time to open them: what one
//! request or one plugin may take of it, and who waits for whom.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use sluice::plugin::{
    Limits, OpenError, OpeningBudget, Plugin, Registry, Runtime, STACK_BYTES, StageRef,
};

use crate::binary::{self, Module};
use crate::support::{
    ONE, compiler, component, info, limits, on_guest_thread, stage_in, stage_of, vocabulary,
};

#[test]
fn memory_comes_back_when_a_chain_is_dropped() {
    on_guest_thread(|| {
        // Room for the instances of one chain and no more.
        let runtime = Runtime::new(Limits {
            max_instances: 64,
            total_memory_bytes: 4 << 20,
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let plugin = registry
            .upload_builtin(&component("sampler"))
            .unwrap()
            .plugin;
        let stages = [StageRef::new(plugin, Map::new())];
        let open = || runtime.open(&vocabulary(), &stages, &info(), ONE);
        for _ in 0..3 {
            let mut chains = Vec::new();
            let refused = loop {
                match open() {
                    Ok(chain) => chains.push(chain),
                    Err(error) => break error,
                }
                assert!(chains.len() < 64);
            };
            let OpenError::Full { message } = refused else {
                panic!("{refused}");
            };
            assert!(message.contains("all plugins share"), "{message}");
            assert!(!chains.is_empty());
        }
    });
}

#[test]
fn memory_that_others_have_is_waited_for() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            total_memory_bytes: 4 << 20,
            ..limits()
        })
        .unwrap();
        let patient = Runtime::new(Limits {
            total_memory_bytes: 4 << 20,
            wait: Duration::from_mins(10),
            ..limits()
        })
        .unwrap();
        // How many chains have room.
        let n_chains = {
            let registry = Registry::new(Arc::clone(&runtime), compiler());
            let plugin = registry.upload_builtin(&component("sampler"));
            let stages = [StageRef::new(plugin.unwrap().plugin, Map::new())];
            let open = |_| runtime.open(&vocabulary(), &stages, &info(), ONE);
            (0..).map_while(|i| open(i).ok()).collect::<Vec<_>>().len()
        };
        let registry = Registry::new(Arc::clone(&patient), compiler());
        let plugin = registry.upload_builtin(&component("sampler"));
        let stages = [StageRef::new(plugin.unwrap().plugin, Map::new())];
        let open = || patient.open(&vocabulary(), &stages, &info(), ONE);
        let mut chains: Vec<_> = (0..n_chains).map(|_| open().unwrap()).collect();
        std::thread::scope(|scope| {
            let one_more = std::thread::Builder::new().stack_size(STACK_BYTES);
            let one_more = one_more.spawn_scoped(scope, || open().is_ok()).unwrap();
            chains.pop();
            assert!(one_more.join().unwrap());
        });
    });
}

/// Nobody could end and make room for it.
#[test]
fn a_request_that_needs_more_memory_than_there_is_does_not_wait() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            total_memory_bytes: 64 << 10,
            wait: Duration::from_hours(1),
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let plugin = registry.upload_builtin(&component("sampler"));
        let stages = [StageRef::new(plugin.unwrap().plugin, Map::new())];
        match runtime.open(&vocabulary(), &stages, &info(), ONE) {
            Err(OpenError::Fault(fault)) => {
                assert_eq!(fault.kind, "no_room");
                assert!(fault.message.contains("all plugins share"), "{fault}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened"),
        }
    });
}

/// Opening has one budget of time, however many prompts a request has: the second
/// pays for the first. What is not its own fault is none of the plugin's.
#[test]
fn the_prompts_of_a_request_open_in_one_budget() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            prepare: Duration::from_millis(600),
            open: Duration::from_millis(100),
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let stages = ["spin-prepare", "sampler"].map(|name| stage_in(&registry, name, json!({})));
        let open = |budget: &mut OpeningBudget| match runtime.open_within(
            &vocabulary(),
            &stages,
            &info(),
            ONE,
            &mut runtime.reserve(&stages, 1, 1, budget).unwrap(),
            budget,
        ) {
            Err(OpenError::Fault(fault)) => fault.kind,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened"),
        };
        let end = Instant::now() + Duration::from_hours(1);
        let mut budget = runtime.opening_budget(end);
        assert_eq!(open(&mut budget), "deadline");
        // A tenth of a second is left at most, then nothing.
        assert_eq!([open(&mut budget), open(&mut budget)], ["late", "late"]);
        assert_eq!(open(&mut runtime.opening_budget(end)), "deadline");
        // Nor does it outlast the request.
        assert_eq!(open(&mut runtime.opening_budget(Instant::now())), "late");
        assert_eq!(stages[0].plugin.n_faults(), 2);
    });
}

/// A component may have twenty tables. Whoever has so many takes no more of the
/// pool than others.
#[test]
fn a_component_of_many_tables_takes_one_place() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            max_instances: 8,
            max_instances_of_one: 4,
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let large = Module::of(&component("force-sampler")).with_more_tables(18);
        let large = registry.upload(&large.embedded()).unwrap().plugin;
        let shipped = registry.upload_builtin(&component("sampler"));
        let shipped = shipped.unwrap().plugin;
        let open = |plugin: &Arc<Plugin>, params: Value| {
            let stages = [stage_of(Arc::clone(plugin), params)];
            runtime.open(&vocabulary(), &stages, &info(), ONE)
        };
        let larges: Vec<_> = (0..4).map(|_| open(&large, json!({"ids": [3]}))).collect();
        let others: Vec<_> = (0..4).map(|_| open(&shipped, json!({}))).collect();
        for opened in larges.iter().chain(&others) {
            assert!(opened.is_ok(), "{:?}", opened.as_ref().err());
        }
    });
}

#[test]
fn a_full_pool_refuses_until_a_chain_is_dropped() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            max_instances: 2,
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let plugin = registry.upload(&component("sampler")).unwrap().plugin;
        let params = Map::from_iter([("temperature".to_owned(), json!(0))]);
        let stages = [StageRef::new(plugin, params)];
        let open = || runtime.open(&vocabulary(), &stages, &info(), ONE);
        let first = open().unwrap();
        let second = open().unwrap();
        match open() {
            Err(OpenError::Full { message }) => assert!(message.contains('2'), "{message}"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened"),
        }
        drop(first);
        assert!(open().is_ok());
        drop(second);
    });
}

#[test]
fn a_full_pool_is_waited_for() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            max_instances: 1,
            wait: Duration::from_mins(1),
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let plugin = registry
            .upload_builtin(&component("sampler"))
            .unwrap()
            .plugin;
        let stages = [StageRef::new(plugin, Map::new())];
        let open = || runtime.open(&vocabulary(), &stages, &info(), ONE);
        let first = open().unwrap();
        std::thread::scope(|scope| {
            let second = std::thread::Builder::new().stack_size(STACK_BYTES);
            let second = second.spawn_scoped(scope, || open().is_ok()).unwrap();
            drop(first);
            assert!(second.join().unwrap());
        });
    });
}

#[test]
fn one_uploaded_plugin_cannot_take_all_the_room() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            max_instances_of_one: 2,
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let uploaded = registry.upload(&component("force-sampler")).unwrap().plugin;
        let shipped = registry
            .upload_builtin(&component("sampler"))
            .unwrap()
            .plugin;
        let open = |plugin: &Arc<Plugin>, params: Value| {
            let stages = [stage_of(Arc::clone(plugin), params)];
            runtime.open(&vocabulary(), &stages, &info(), ONE)
        };
        let force = || open(&uploaded, json!({"ids": [3]}));
        let held = [force().unwrap(), force().unwrap()];
        match force() {
            Err(OpenError::Full { message }) => {
                assert!(message.contains("all 2 instances"), "{message}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened"),
        }
        let all: Vec<_> = (0..8).map(|_| open(&shipped, json!({})).unwrap()).collect();
        assert_eq!(all.len(), 8);
        drop(held);
        assert!(force().is_ok());
    });
}

/// Neither another version nor the same bytes again have room of their own while
/// the instances of the one before are there.
#[test]
fn a_name_has_one_room_whatever_is_registered_under_it() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            max_instances_of_one: 2,
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let bytes = component("force-sampler");
        let open = |plugin: &Arc<Plugin>| {
            let stages = [stage_of(Arc::clone(plugin), json!({"ids": [3]}))];
            runtime.open(&vocabulary(), &stages, &info(), ONE)
        };
        let first = registry.upload(&bytes).unwrap().plugin;
        let held = [open(&first).unwrap(), open(&first).unwrap()];
        let second = registry.upload(&binary::numbered(&bytes, 20)).unwrap();
        assert!(matches!(open(&second.plugin), Err(OpenError::Full { .. })));
        drop(first);
        registry.remove("force-sampler").unwrap();
        drop(second);
        let again = registry.upload(&bytes).unwrap();
        assert!(again.created);
        assert!(matches!(open(&again.plugin), Err(OpenError::Full { .. })));
        drop(held);
        assert!(open(&again.plugin).is_ok());
    });
}

/// Whoever waits for the instances of one plugin keeps nobody else from opening.
#[test]
fn a_plugin_whose_instances_are_in_use_holds_up_no_other() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            max_instances_of_one: 1,
            wait: Duration::from_mins(10),
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let scarce = [stage_in(&registry, "force-sampler", json!({"ids": [3]}))];
        let other = [stage_in(&registry, "sampler", json!({}))];
        let open = |stages: &[StageRef]| runtime.open(&vocabulary(), stages, &info(), ONE);
        let held = open(&scarce).unwrap();
        std::thread::scope(|scope| {
            let waiting = std::thread::Builder::new().stack_size(STACK_BYTES);
            let waiting = waiting
                .spawn_scoped(scope, || open(&scarce).is_ok())
                .unwrap();
            // One of these would wait behind it until it gives up.
            for _ in 0..500 {
                assert!(open(&other).is_ok());
            }
            drop(held);
            assert!(waiting.join().unwrap());
        });
    });
}

/// Who waits for the instances of one plugin has none of another meanwhile.
#[test]
fn an_exhausted_plugin_keeps_only_its_own_requests_waiting() {
    on_guest_thread(|| {
        let runtime = Runtime::new(Limits {
            max_instances: 16,
            max_instances_of_one: 2,
            wait: Duration::from_mins(10),
            ..limits()
        })
        .unwrap();
        let registry = Registry::new(Arc::clone(&runtime), compiler());
        let (counter, sampler) = (
            stage_in(&registry, "counter", json!({})),
            stage_in(&registry, "sampler", json!({})),
        );
        let force = stage_in(&registry, "force-sampler", json!({"ids": [3]}));
        let open = |stages: &[StageRef]| runtime.open(&vocabulary(), stages, &info(), ONE);
        let samplers = [0; 2].map(|_| open(std::slice::from_ref(&sampler)).unwrap());
        std::thread::scope(|scope| {
            let waits = std::thread::Builder::new().stack_size(STACK_BYTES);
            let stages = [counter.clone(), sampler.clone()];
            let open = &open;
            let waits = waits.spawn_scoped(scope, move || open(&stages).is_ok());
            // Long enough for it to wait, if the machine is not too busy.
            std::thread::sleep(Duration::from_millis(100));
            let others = [0; 2].map(|_| open(&[counter.clone(), force.clone()]));
            assert!(others.iter().all(Result::is_ok));
            drop((samplers, others));
            assert!(waits.unwrap().join().unwrap());
        });
    });
}
