//! What a guest hands to the host, and how it traps: bounded, told, and of no
//! consequence to anybody else.

use axum::http::StatusCode;
use serde_json::json;

use crate::binary::{Module, code, numbered};
use crate::guest;
use crate::server::Killable;

const PLAN: &str = "#[method]sequence.plan";
const PROCESS: &str = "#[method]sequence.process";
const DESCRIBE: &str = "#describe";

/// A memory of 200 MiB, zeros from its 64th on.
const PAGES: u32 = 3200;
const ZEROS: i32 = 64 << 20;
/// More than one import or result may carry.
const N_BYTES: i32 = 100 << 20;
/// Where results are put: below the stack, which is far from full.
const RESULT: i32 = 1024;

/// What a plugin does in the call of that name, and words of the fault.
struct Case {
    kind: &'static str,
    export: &'static str,
    body: fn(&Module) -> Vec<u8>,
    words: &'static [&'static str],
}

/// Calls an import with a list of `n` elements, and perhaps a value before it.
fn hand_over(module: &Module, import: (&str, &str), before: &[u8], n: i32) -> Vec<u8> {
    let function = module.import(import.0, import.1);
    let (from, n) = (code::number(ZEROS), code::number(n));
    code::body(
        0,
        &[
            before,
            &from,
            &n,
            &code::call(function),
            &[code::UNREACHABLE],
        ],
    )
}

/// Returns a result whose value begins with these words of four bytes.
fn give_back(words: &[i32]) -> Vec<u8> {
    let stores: Vec<u8> = (0..)
        .zip(words)
        .flat_map(|(i, word)| code::store(RESULT + 4 * i, *word))
        .collect();
    code::body(0, &[&stores, &code::number(RESULT)])
}

fn cases() -> Vec<Case> {
    const TOKEN: &str = "misbehave-token";
    const LOGITS: &str = "misbehave-logits";
    const FUEL: &[&str] = &["fuel"];
    vec![
        Case {
            kind: TOKEN,
            export: PLAN,
            body: |module| hand_over(module, ("log@0.1.0", "write"), &code::number(3), N_BYTES),
            words: FUEL,
        },
        Case {
            kind: TOKEN,
            export: PLAN,
            body: |module| hand_over(module, ("edits@0.1.0", "deny"), &[], N_BYTES / 4),
            words: FUEL,
        },
        Case {
            kind: TOKEN,
            export: PLAN,
            body: |module| hand_over(module, ("control@0.1.0", "force"), &[], N_BYTES / 4),
            words: FUEL,
        },
        Case {
            kind: TOKEN,
            export: PLAN,
            // An error that long.
            body: |_| give_back(&[1, ZEROS, N_BYTES]),
            words: FUEL,
        },
        Case {
            kind: LOGITS,
            export: PROCESS,
            // A row that long.
            body: |_| give_back(&[0, 1, ZEROS, N_BYTES / 4]),
            words: FUEL,
        },
        Case {
            kind: TOKEN,
            export: PLAN,
            // An error that lies outside its memory.
            body: |_| give_back(&[1, -16, 1024]),
            words: &["out of bounds"],
        },
        Case {
            kind: TOKEN,
            export: PLAN,
            body: |_| {
                let address = code::number(-4);
                let load = [&address[..], &code::LOAD, &[code::DROP]].concat();
                code::body(0, &[&load, &[code::UNREACHABLE]])
            },
            words: &["out of bounds"],
        },
        Case {
            kind: TOKEN,
            export: PLAN,
            body: |_| {
                let numbers = [code::number(1), code::number(0)].concat();
                code::body(0, &[&numbers, &[code::DIVIDE]])
            },
            words: &["divide by zero"],
        },
        Case {
            kind: TOKEN,
            export: PLAN,
            body: |_| {
                let grow = [
                    &code::NULL_FUNCTION[..],
                    &code::number(100_000_000),
                    &code::GROW_TABLE,
                ];
                code::body(0, &[&grow.concat()])
            },
            words: &["tables would hold", "65536"],
        },
    ]
}

#[tokio::test]
async fn values_of_guests_are_bounded_and_traps_are_told() {
    let data = tempfile::tempdir().unwrap();
    let process = Killable::start_with(data.path(), |command| {
        command.args(["--plugin-max-faults", "0", "--plugin-call-ms", "2000"]);
    });
    let server = &process.client;
    let neighbour = json!({
        "prompt": "Chapter one. It was", "max_tokens": 8, "seed": 3, "presence_penalty": 0.5,
    });
    let alone = server.complete(&neighbour).await;
    #[cfg(target_os = "linux")]
    let before = crate::process::Process(process.id()).peak_bytes();
    for (i, case) in cases().into_iter().enumerate() {
        // A version that was removed stays taken.
        let component = numbered(&guest(case.kind), i as u32);
        let module = Module::of(&component)
            .with_memories(&[PAGES])
            .with_table(1000);
        let body = (case.body)(&module);
        let (status, answer) = server
            .upload(module.with_export(case.export, &body).embedded())
            .await;
        assert_eq!(status, StatusCode::CREATED, "{i}: {answer}");
        let faulty = json!({
            "prompt": "The faulty one", "max_tokens": 30, "temperature": 0,
            "processors": [{"plugin": answer["digest"], "params": {"fault": "none", "after": 9}}],
        });
        let (other, (status, answer)) = tokio::join!(
            server.complete(&neighbour),
            server.post("/v1/completions", &faulty)
        );
        println!("{answer}");
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{i}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(case.kind), "{i}: {message}");
        assert!(message.len() < 5_000, "{i}: {} bytes", message.len());
        for word in case.words {
            assert!(message.contains(word), "{i}: {word} in {message}");
        }
        assert_eq!(other["choices"], alone["choices"], "{i}");
        assert_eq!(server.delete(case.kind).await.0, StatusCode::OK);
    }
    // A description that long fails in the process that compiles.
    let module = Module::of(&guest("misbehave-token")).with_memories(&[PAGES]);
    let body = give_back(&[ZEROS, N_BYTES, ZEROS, 5, ZEROS, 5, ZEROS, 5]);
    let (status, answer) = server
        .upload(module.with_export(DESCRIBE, &body).embedded())
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    assert!(answer.to_string().contains("describe"), "{answer}");
    // Nobody took a copy of a hundred MiB.
    #[cfg(target_os = "linux")]
    {
        let more = crate::process::Process(process.id()).peak_bytes() - before;
        assert!(more < 64 << 20, "{more} bytes");
    }
}
