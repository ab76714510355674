//! A plugin does under `cargo test`, in the SDK's harness, what it does as a
//! component: the same source, both ways.

use serde_json::{Value, json};
use sluice::{
    engine::{Fault, Plan},
    plugin::SequenceInfo,
};
use sluice_plugin::testing::{Exported, Outcome, Setup};

use super::support::limits;
use shared::{Plugins, numbered_vocabulary, shipped, test_guest};

#[path = "../guests/dice.rs"]
mod dice;
#[path = "../guests/misbehave-logits.rs"]
mod logits;
#[path = "../guests/misbehave-sampler.rs"]
mod sampler;
#[path = "../support/mod.rs"]
mod shared;
#[path = "../guests/misbehave-token.rs"]
mod token;

const ROW: [f32; 6] = [1.0, f32::NEG_INFINITY, 3.0, -2.0, 0.5, 2.5];
const SEED: i64 = 7;

/// What came of a position, and what is said of a failure.
type Seen = (String, Option<String>);

fn failed(kind: &str, message: &str) -> Seen {
    (format!("fails: {kind}"), Some(message.to_owned()))
}

/// After the token 4, natively.
fn natively<P: Exported>(params: &Value) -> Seen {
    let setup = Setup::new(6).seed(SEED).params(params.to_string());
    let mut sequence = match setup.open::<P>() {
        Ok(sequence) => sequence,
        Err(failure) => return failed(failure.kind, &failure.message),
    };
    match sequence.step(&[4], &ROW) {
        Outcome::Forced(tokens) => (format!("forces {tokens:?}"), None),
        Outcome::Stopped => ("stops".to_owned(), None),
        Outcome::Chose { row, token } => (format!("{token} of {row:?}"), None),
        Outcome::Failed(failure) => failed(failure.kind, &failure.message),
    }
}

/// The same as a component, before the shipped sampler where it is none.
fn as_component(plugins: &Plugins, name: &str, params: &Value) -> Seen {
    let mut stages = vec![plugins.stage(name, params.clone()).unwrap()];
    if !name.ends_with("sampler") {
        stages.push(plugins.stage("sampler", json!({"temperature": 0})).unwrap());
    }
    let info = SequenceInfo {
        prompt: vec![],
        max_tokens: 100,
        end_ids: vec![],
    };
    let vocabulary = numbered_vocabulary(6, vec![]);
    let told = |fault: &Fault| failed(fault.kind, &fault.message);
    let mut chain = match plugins.open(&vocabulary, &stages, &info, SEED) {
        Ok(chain) => chain,
        Err(sluice::plugin::OpenError::Fault(fault)) => return told(&fault),
        Err(error) => panic!("{error}"),
    };
    match chain.plan(&[4]) {
        Ok(Plan::Force(tokens)) => return (format!("forces {tokens:?}"), None),
        Ok(Plan::Stop) => return ("stops".to_owned(), None),
        Ok(Plan::Sample) => {}
        Err(fault) => return told(&fault),
    }
    let mut row = ROW.to_vec();
    match chain.finish_values(&mut row) {
        Ok(token) => (format!("{token} of {row:?}"), None),
        Err(fault) => told(&fault),
    }
}

#[track_caller]
fn compare<P: Exported>(plugins: &Plugins, name: &str, params: &Value) {
    let (did, message) = natively::<P>(params);
    let (did_there, message_there) = as_component(plugins, name, params);
    assert_eq!(
        did, did_there,
        "{name} {params}: {message:?}, {message_there:?}"
    );
    // A component's panic names the line, too.
    if did != "fails: trap" {
        assert_eq!(message, message_there, "{name} {params}");
    }
}

#[test]
fn the_harness_does_what_the_runtime_does() {
    let guests = [
        "misbehave-token",
        "misbehave-logits",
        "misbehave-sampler",
        "dice",
    ];
    let mut components = guests.map(test_guest).to_vec();
    components.push(shipped("sampler"));
    let plugins = Plugins::with_limits(limits(), &components);
    // The same in all kinds, in the call and in `open`.
    let all = ["panic", "error", "nobody knows it", "read"];
    let of_token = [
        "nan-edit",
        "infinite-edit",
        "outside-edit",
        "unequal-edit",
        "zero-divisor",
        "outside-deny",
        "deny-all",
        "deny",
        "force",
        "force-nothing",
        "force-outside",
        "decide-twice",
    ];
    let of_logits = [
        "nan-row",
        "infinite-row",
        "banned-row",
        "zero-row",
        "short-row",
        "long-row",
        "edit-and-row",
        "nan-edit",
        "deny",
        "deny-all",
        "zero-temperature",
    ];
    let of_sampler = ["outside", "banned", "zero-temperature"];
    for params in [
        |fault| json!({"fault": fault}),
        |fault: &str| json!({"fault": fault, "after": 1}),
    ] {
        for fault in of_token.iter().chain(&all) {
            compare::<token::Misbehave>(&plugins, guests[0], &params(fault));
        }
        for fault in of_logits.iter().chain(&all) {
            compare::<logits::Misbehave>(&plugins, guests[1], &params(fault));
        }
        for fault in of_sampler.iter().chain(&all) {
            compare::<sampler::Misbehave>(&plugins, guests[2], &params(fault));
        }
    }
    for sides in 1..4 {
        let params = json!({"sides": sides, "place": 0});
        compare::<dice::Dice>(&plugins, guests[3], &params);
    }
}
