//! A guest that asks the system is told nothing of it, and cannot wait.

use serde_json::json;
use sluice::engine::Fault;

use crate::support::{on_guest_thread, open, plugin, stage};

/// How a guest fails that asks for something: with what it was told.
fn asked(what: &str) -> Fault {
    let sampler = stage("sampler", json!({"temperature": 0}));
    let mut chain = open(&[stage("wasi", json!({"what": what})), sampler]).unwrap();
    chain.plan(&[]).expect_err(what)
}

#[test]
fn the_system_is_empty_and_stands_still() {
    on_guest_thread(|| {
        for (what, told) in [
            ("time", "0 0 0"),
            ("chance", "[0, 0, 0] 0"),
            ("environment", "[] [] None"),
            ("files", "0"),
        ] {
            let fault = asked(what);
            assert_eq!((fault.kind, fault.message.as_str()), ("error", told));
        }
    });
}

#[test]
fn waiting_ending_and_floods_are_faults() {
    on_guest_thread(|| {
        for (what, words) in [
            ("sleep", "cannot wait"),
            ("poll", "cannot wait"),
            ("end", "ended itself"),
            ("much chance", "65536 random bytes"),
        ] {
            let fault = asked(what);
            assert_eq!((fault.stage.as_str(), fault.kind), ("wasi", "invalid_call"));
            assert!(fault.message.contains(words), "{fault}");
        }
    });
}

#[test]
fn what_is_written_to_standard_error_is_a_message_of_the_plugin() {
    on_guest_thread(|| {
        assert_eq!(asked("one\n\ntwo\n").message, "true");
        let messages = plugin("wasi").messages();
        let said: Vec<_> = messages
            .iter()
            .map(|(_, line)| (line.level, line.message.as_str()))
            .collect();
        assert!(
            said.ends_with(&[("error", "one"), ("error", "two")]),
            "{said:?}"
        );
    });
}
