//! Planted faults, and files that are none of what they should be: `check` finds
//! each, says it in one line with a cure, and ends.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::binary::{self, Module, main_module};
use crate::{check, file, findings, guest, plugin, shipped};

fn component(name: &str) -> Vec<u8> {
    fs::read(guest(name)).unwrap()
}

/// The plugin as a core module that carries its type.
fn module(name: &str) -> Vec<u8> {
    Module::of(&component(name)).embedded()
}

/// The only finding about a file.
fn finding(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("planted.wasm");
    fs::write(&path, bytes).unwrap();
    let mut found = findings(path.to_str().unwrap(), &json!({}));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn assert_refused(bytes: &[u8], codes: &[&str]) {
    let found = finding(bytes);
    let is_said = |code: &&str| found.contains(&format!("refuses it ({code})"));
    assert!(codes.iter().any(is_said), "{codes:?}: {found}");
}

#[test]
fn an_address_is_no_chance() {
    let found = findings(&guest("address"), &json!({}));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("beside other sequences"), "{found:?}");
    assert!(found[0].contains("use no address"), "{found:?}");
}

#[test]
fn raising_a_banned_token_is_found_and_a_bias_is_not() {
    for by in ["edit", "row"] {
        let found = findings(&guest("raise"), &json!({"by": by}));
        assert_eq!(found.len(), 1, "{by}: {found:?}");
        assert!(found[0].contains("raises the banned token"), "{found:?}");
    }
    let run = check(&guest("raise"), &json!({"by": "bias"}));
    assert_eq!(run.code, Some(0), "{}{}", run.output, run.errors);
}

#[test]
fn huge_lists_are_found() {
    for (what, kind) in [
        ("edit", "invalid_call"),
        ("force", "invalid_call"),
        ("many", "invalid_edit"),
    ] {
        let found = findings(&guest("huge-list"), &json!({"what": what}));
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        assert!(found[0].contains(&format!("({kind})")), "{what}: {found:?}");
    }
}

#[test]
fn a_core_module_passes_if_it_carries_its_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("module.wasm");
    fs::write(&path, module("counter")).unwrap();
    let run = check(path.to_str().unwrap(), &json!({}));
    assert_eq!(run.code, Some(0), "{}{}", run.output, run.errors);
    let bare = main_module(&component("counter"));
    assert_refused(&bare, &["invalid_component"]);
}

#[test]
fn compiled_code_is_no_component() {
    let engine = wasmtime::Engine::default();
    let code = engine.precompile_component(&component("counter"));
    assert_refused(&code.unwrap(), &["native_code"]);
}

#[test]
fn missing_exports_are_found() {
    let counter = component("counter");
    for (part, other, code) in [
        ("sampling/plugin@", "sampling/plagin@", "no_kind"),
        (
            "sampling/token-processor@",
            "sampling/taken-processor@",
            "no_kind",
        ),
        ("sequence.plan", "sequence.plot", "wrong_type"),
    ] {
        assert_refused(&binary::replaced(&counter, part, other), &[code]);
    }
}

#[test]
fn packages_that_form_a_cycle_are_found() {
    let cycle = binary::module_of_circular_packages(&component("counter"));
    assert_refused(&cycle, &["compile_crashed"]);
}

#[test]
#[ignore = "takes minutes of processor time"]
fn bombs_are_found() {
    let counter = || Module::of(&component("counter"));
    let loops = counter().with_functions(1, |_| binary::nested_loops());
    let many = counter().with_functions(900_000, binary::small_function);
    for bomb in [loops, many] {
        assert_refused(&bomb.embedded(), &["too_complex", "compile_timeout"]);
    }
}

#[test]
fn neutral_params_are_told_of() {
    let told = "did anything at any position";
    for (component, params, is_told) in [
        ("penalties", json!({}), true),
        ("penalties", json!({"frequency_penalty": 0.5}), false),
        ("sampler", json!({"temperature": 0}), false),
    ] {
        let component = shipped(component);
        let run = check(&component, &params);
        assert_eq!(run.code, Some(0), "{}{}", run.output, run.errors);
        let said = "it did nothing at any position";
        assert_eq!(
            run.output.contains(said),
            is_told,
            "{params}: {}",
            run.output
        );
        let params = params.to_string();
        let run = plugin(&["diff", &component, &component, "--params", &params]);
        assert_eq!(run.code, Some(0), "{}{}", run.output, run.errors);
        assert_eq!(
            run.output.contains(told),
            is_told,
            "{params}: {}",
            run.output
        );
    }
}

/// The row that is read, the token that was accepted; an id and a value for
/// each token that the host bans itself, the eight of the padding.
#[test]
fn a_bench_counts_what_crosses_the_boundary() {
    let guest = guest("raise");
    let params = json!({"by": "edit"}).to_string();
    let run = plugin(&[
        "bench",
        &guest,
        "--json",
        "--tokens",
        "3",
        "--vocabulary",
        "1000",
        "--batch",
        "2",
        "--params",
        &params,
    ]);
    assert_eq!(run.code, Some(0), "{}", run.errors);
    let answer: serde_json::Value = serde_json::from_str(&run.output).unwrap();
    let row = &answer["rows"][0];
    assert_eq!(row["bytes_in_per_call"], 4 * 1000 + 4);
    assert_eq!(row["bytes_out_per_call"], 8 * (4 + 4));
}

/// They are the same for the example in each language.
#[test]
fn the_cases_of_the_example_hold() {
    let cases = file("examples/languages/cases.json");
    let run = plugin(&["test", &file("examples/dist/at-most.wasm"), &cases]);
    assert_eq!(run.code, Some(0), "{}{}", run.output, run.errors);
    assert!(Path::new(&cases).is_file());
}
