//! An author's commands, as the program runs them on real components.
#![allow(clippy::expect_used, clippy::unwrap_used)]

#[path = "support/binary.rs"]
mod binary;
#[path = "author/faults.rs"]
mod faults;
#[path = "author/projects.rs"]
mod projects;
#[path = "support/server.rs"]
mod server;
#[path = "author/servers.rs"]
mod servers;

use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

struct Run {
    code: Option<i32>,
    output: String,
    errors: String,
}

fn plugin_in(folder: &Path, arguments: &[&str]) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .current_dir(folder)
        .env_remove("SLUICE_TOKEN")
        .env_remove("SLUICE_SERVER")
        .arg("plugin")
        .args(arguments)
        .output()
        .unwrap();
    Run {
        code: output.status.code(),
        output: String::from_utf8(output.stdout).unwrap(),
        errors: String::from_utf8(output.stderr).unwrap(),
    }
}

fn plugin(arguments: &[&str]) -> Run {
    plugin_in(Path::new("."), arguments)
}

fn file(path: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join(path).to_str().unwrap().to_owned()
}

fn shipped(name: &str) -> String {
    file(&format!("plugins/dist/{name}.wasm"))
}

fn guest(name: &str) -> String {
    file(&format!("tests/guests/dist/{name}.wasm"))
}

fn check(component: &str, params: &Value) -> Run {
    plugin(&["check", component, "--params", &params.to_string()])
}

/// The findings of a check, which says by its status that there are some.
fn findings(component: &str, params: &Value) -> Vec<String> {
    let run = check(component, params);
    assert_eq!(run.code, Some(1), "{component} {params}: {}", run.output);
    let lines = run.output.lines().filter(|l| l.starts_with("finding: "));
    let lines: Vec<_> = lines.map(str::to_owned).collect();
    assert!(!lines.is_empty(), "{}{}", run.output, run.errors);
    assert!(lines.iter().all(|l| l.contains(" Cure: ")), "{lines:?}");
    lines
}

#[test]
fn the_shipped_plugins_pass() {
    for (name, params) in [
        (
            "rules",
            json!({"logit_bias": {"100": -1.5}, "min_tokens": 5, "no_repeat_ngram_size": 2}),
        ),
        (
            "penalties",
            json!({"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2}),
        ),
        ("dry", json!({"dry_multiplier": 0.8})),
        ("grammar", json!({"regex": "[a-z]{3,9} [0-9]+"})),
        (
            "sampler",
            json!({"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01}),
        ),
        ("mirostat", json!({"mirostat_tau": 2})),
        ("adaptive-p", json!({"adaptive_target": 0.3})),
    ] {
        let run = check(&shipped(name), &params);
        assert_eq!(run.code, Some(0), "{name}: {}{}", run.output, run.errors);
        assert!(run.output.starts_with(&format!("{name} 0.1.0, a ")));
        assert!(run.output.contains("contract sluice:sampling@0.1.0"));
        assert!(run.output.ends_with("nothing found\n"), "{}", run.output);
    }
}

/// Forcing, stopping and chance are no faults.
#[test]
fn sound_plugins_of_every_sort_pass() {
    for (name, params) in [
        ("counter", json!({})),
        ("force", json!({"ids": [5, 6, 7]})),
        ("stop-at", json!({"tokens": 9})),
        ("dice", json!({"sides": 4, "place": 1})),
        ("identity", json!({})),
    ] {
        let run = check(&guest(name), &params);
        assert_eq!(run.code, Some(0), "{name}: {}{}", run.output, run.errors);
    }
}

#[test]
fn what_must_not_be_remembered_is_found() {
    for (what, said) in [
        ("chunk", "told of all at once"),
        ("calls", "told of all at once"),
        ("decision", "it forces [65], or it decides nothing"),
        ("static", "beside other sequences"),
        ("address", "beside other sequences"),
    ] {
        let found = findings(&guest("remember"), &json!({"what": what}));
        assert!(found.iter().any(|f| f.contains(said)), "{what}: {found:?}");
    }
    let found = findings(&guest("luck"), &json!({}));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("the chance of earlier positions"),
        "{found:?}"
    );
}

/// One fault each, committed from the third token on.
#[test]
fn planted_faults_are_found() {
    let token = [
        "nan-edit",
        "infinite-edit",
        "outside-edit",
        "unequal-edit",
        "zero-divisor",
    ];
    let token = token.map(|fault| ("misbehave-token", fault, "invalid_edit"));
    let more = [
        ("misbehave-token", "deny-all", "all_banned"),
        ("misbehave-token", "force-nothing", "invalid_decision"),
        ("misbehave-token", "force-outside", "invalid_decision"),
        ("misbehave-token", "decide-twice", "invalid_decision"),
        ("misbehave-token", "spin", "deadline"),
        ("misbehave-token", "trap", "trap"),
        ("misbehave-token", "grow", "memory"),
        ("misbehave-token", "error", "error"),
        ("misbehave-logits", "nan-row", "invalid_row"),
        ("misbehave-logits", "infinite-row", "invalid_row"),
        ("misbehave-logits", "banned-row", "all_banned"),
        ("misbehave-logits", "short-row", "invalid_row"),
        ("misbehave-logits", "edit-and-row", "invalid_edit"),
        ("misbehave-sampler", "outside", "banned_token"),
        ("misbehave-sampler", "banned", "banned_token"),
    ];
    for (component, fault, kind) in token.into_iter().chain(more) {
        let found = findings(&guest(component), &json!({"fault": fault, "after": 3}));
        assert_eq!(found.len(), 1, "{fault}: {found:?}");
        assert!(
            found[0].contains(&format!("({kind})")),
            "{fault}: {found:?}"
        );
    }
}

#[test]
fn what_a_server_would_refuse_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(shipped("penalties")).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (component, code) in [
        (write("text", b"hello"), "not_a_component"),
        (write("wat", b"(component)"), "text_component"),
        (write("elf", b"\x7fELF\x02\x01\x01"), "native_code"),
        (write("module", b"\0asm\x01\0\0\0"), "no_kind"),
        (write("empty", b"\0asm\x0d\0\x01\0"), "no_kind"),
        (guest("trap-describe"), "describe_failed"),
        (guest("spin-describe"), "describe_failed"),
    ] {
        let found = findings(&component, &json!({}));
        assert!(found[0].contains(&format!("({code})")), "{found:?}");
    }
    for sixteenth in 1..16 {
        let cut = write("cut", &whole[..whole.len() * sixteenth / 16]);
        let found = findings(&cut, &json!({}));
        assert!(found[0].contains("refuses it"), "{sixteenth}: {found:?}");
    }
}

#[test]
fn params_that_do_not_fit_are_named() {
    let run = check(&file("examples/dist/at-most.wasm"), &json!({}));
    assert_eq!(run.code, Some(1));
    assert!(
        run.errors
            .contains("at the root: \"times\" is a required property"),
        "{}",
        run.errors
    );
    let run = check(&shipped("penalties"), &json!({"repetition_penalty": -1}));
    assert_eq!(run.code, Some(1));
    assert!(
        run.errors.contains("at `/repetition_penalty`"),
        "{}",
        run.errors
    );
}

/// Worked by hand from the formulas in `plugins/README.md`: the repetition
/// penalty takes prompt and text, the others the text alone.
fn cases() -> Value {
    json!([
        {"id": "the prompt is repeated", "params": {"repetition_penalty": 2},
         "prompt_tokens": [0], "generated_tokens": [1],
         "logits": [4, -4, 4, "-inf"], "expected_logits": [2, -8, 4, "-inf"]},
        {"id": "only the text counts", "params": {"presence_penalty": 1, "frequency_penalty": 0.5},
         "prompt_tokens": [0], "generated_tokens": [1, 1],
         "logits": [4, 4, 4], "expected_logits": [4, 2, 4], "expected_token": 0},
        {"id": "out of range", "params": {"repetition_penalty": 1000},
         "logits": [1], "expected_error": "invalid_params"}
    ])
}

fn run_cases(component: &str, cases: &Value) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.json");
    fs::write(&path, cases.to_string()).unwrap();
    plugin(&["test", component, path.to_str().unwrap()])
}

#[test]
fn worked_cases_hold_or_do_not() {
    let run = run_cases(&shipped("penalties"), &cases());
    assert_eq!(run.code, Some(0), "{}{}", run.output, run.errors);
    assert!(
        run.output.ends_with("3 of 3 cases hold\n"),
        "{}",
        run.output
    );

    // It counts the prompt, too.
    let run = run_cases(&guest("mutant-penalties"), &cases());
    assert_eq!(run.code, Some(1));
    assert!(
        run.output.contains("failed  only the text counts: "),
        "{}",
        run.output
    );
    assert!(
        run.output.ends_with("2 of 3 cases hold\n"),
        "{}",
        run.output
    );

    let decisions = json!([
        {"id": "forced", "params": {"ids": [2, 1]}, "generated_tokens": [2], "logits": [0, 0, 0],
         "expected_decision": {"force": [1]}},
        {"id": "left alone", "params": {"ids": [2]}, "generated_tokens": [2], "logits": [0, 1, 0],
         "expected_token": 1},
        {"id": "not said", "params": {"ids": [2]}, "logits": [0, 1, 0], "expected_token": 1}
    ]);
    let run = run_cases(&guest("force"), &decisions);
    assert!(
        run.output.contains("failed  not said: it forces [2]"),
        "{}",
        run.output
    );
    assert!(
        run.output.ends_with("2 of 3 cases hold\n"),
        "{}",
        run.output
    );

    // The published number of seed 0 at position 0 is 0.399.
    let draws = json!([
        {"id": "first half", "logits": [1, 5, 5], "params": {"top_k": 2}, "expected_token": 1},
        {"id": "only one left", "logits": ["-inf", "-inf", 5], "expected_token": 2}
    ]);
    let run = run_cases(&shipped("sampler"), &draws);
    assert_eq!(run.code, Some(0), "{}{}", run.output, run.errors);
}

#[test]
fn cases_that_say_nothing_do_not_hold() {
    let run = run_cases(
        &shipped("penalties"),
        &json!([{"id": "idle", "logits": [1]}]),
    );
    assert_eq!(run.code, Some(1));
    assert!(run.output.contains("it expects nothing"), "{}", run.output);
    let run = run_cases(&shipped("penalties"), &json!([]));
    assert_eq!(run.code, Some(1));
    assert!(run.errors.contains("no cases"), "{}", run.errors);
    let misspelt = json!([{"id": "x", "logits": [1], "expected_logit": [1]}]);
    let run = run_cases(&shipped("penalties"), &misspelt);
    assert_eq!(run.code, Some(1));
    assert!(run.errors.contains("expected_logit"), "{}", run.errors);
}

#[test]
fn two_versions_differ_where_the_formula_does() {
    let (a, b) = (shipped("penalties"), guest("mutant-penalties"));
    let params = json!({"frequency_penalty": 0.5}).to_string();
    let run = plugin(&["diff", &a, &b, "--params", &params]);
    assert_eq!(run.code, Some(1), "{}{}", run.output, run.errors);
    // One counts the prompt, before anything was generated.
    assert!(
        run.output.starts_with("context 0, after []: "),
        "{}",
        run.output
    );
    let run = plugin(&["diff", &a, &a, "--params", &params]);
    assert_eq!(run.code, Some(0), "{}{}", run.output, run.errors);
    let run = plugin(&["diff", &a, &shipped("sampler")]);
    assert!(
        run.errors.contains("penalties is a token-processor"),
        "{}",
        run.errors
    );
}

#[test]
fn a_bench_has_a_row_for_each_size() {
    let run = plugin(&[
        "bench",
        &shipped("penalties"),
        "--json",
        "--tokens",
        "4",
        "--vocabulary",
        "1000,2000",
        "--batch",
        "1,3",
    ]);
    assert_eq!(run.code, Some(0), "{}", run.errors);
    let answer: Value = serde_json::from_str(&run.output).unwrap();
    let rows = answer["rows"].as_array().unwrap();
    let sizes: Vec<_> = rows
        .iter()
        .map(|r| (&r["vocabulary"], &r["batch"]))
        .collect();
    let (v, b) = ([json!(1000), json!(2000)], [json!(1), json!(3)]);
    assert_eq!(
        sizes,
        [
            (&v[0], &b[0]),
            (&v[0], &b[1]),
            (&v[1], &b[0]),
            (&v[1], &b[1])
        ]
    );
    assert_eq!(rows[1]["calls"], 12);
    // The token that was accepted; each of a few counted tokens and its penalty,
    // or nothing with the neutral parameters.
    assert_eq!(rows[0]["bytes_in_per_call"], 4);
    // A component of Rust starts with 1 MiB of stack.
    assert!(rows[0]["instance_bytes"].as_u64().unwrap() >= 1 << 20);
}

#[test]
fn a_new_project_is_whole_and_made_once() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["token", "logits", "sampler"] {
        let name = format!("my-{kind}");
        let run = plugin_in(folder.path(), &["new", &name, "--kind", kind]);
        assert_eq!(run.code, Some(0), "{}", run.errors);
        assert!(run.output.contains("depends on the SDK by path"));
        let again = plugin_in(folder.path(), &["new", &name, "--kind", kind]);
        assert_eq!(again.code, Some(1));
        let project = folder.path().join(&name);
        for file in ["Cargo.toml", "src/lib.rs", "README.md", "cases.json"] {
            let text = fs::read_to_string(project.join(file)).unwrap();
            assert!(!text.contains("{{"), "{file} is not filled in");
        }
        // Cargo understands it, and finds the SDK.
        let output = Command::new(env!("CARGO"))
            .current_dir(&project)
            .args([
                "metadata",
                "--no-deps",
                "--format-version",
                "1",
                "--offline",
            ])
            .output()
            .unwrap();
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(metadata["packages"][0]["name"], json!(name));
    }
    let run = plugin_in(folder.path(), &["new", "../Mine", "--kind", "token"]);
    assert_eq!(run.code, Some(1));
    assert!(run.errors.contains("`../Mine`"), "{}", run.errors);
}
