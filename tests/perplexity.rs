//! `sluice perplexity` gives what mlx-lm gives on the same windows of the same
//! text, with the real program and the default model.
//! `tests/perplexity/make_expected.py` has made the expected losses.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/perplexity")
}

fn perplexity(arguments: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice"))
        .arg("perplexity")
        .args(arguments)
        .arg(file)
        .output()
        .unwrap()
}

fn report(arguments: &[&str], file: &Path) -> Value {
    let output = perplexity(&[arguments, &["--json"]].concat(), file);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn losses_are_those_of_mlx_lm_under_every_policy() {
    let expected = std::fs::read(folder().join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    for case in expected["cases"].as_array().unwrap() {
        let arguments: Vec<&str> = case["arguments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|argument| argument.as_str().unwrap())
            .collect();
        let report = report(&arguments, &folder().join("harbour.txt"));
        let result = &report["result"];
        assert_eq!(result["n_tokens_scored"], case["n_tokens_scored"]);
        assert_eq!(result["n_windows"], case["n_windows"]);
        let (ours, theirs) = (
            result["mean_negative_logprob"].as_f64().unwrap(),
            case["mean_negative_logprob"].as_f64().unwrap(),
        );
        assert!(
            (ours - theirs).abs() < 1e-4,
            "{arguments:?}: {ours} {theirs}"
        );
        let perplexity = result["perplexity"].as_f64().unwrap();
        assert!((perplexity - theirs.exp()).abs() < 1e-3 * perplexity);
        if arguments.contains(&"--prefix-token") {
            // Every token is scored, so every byte is.
            assert_eq!(result["n_bytes_scored"], expected["n_bytes"]);
        }
    }
}

#[test]
fn a_line_of_json_is_a_document_like_a_file() {
    let text = std::fs::read_to_string(folder().join("harbour.txt")).unwrap();
    let (first, second) = text.split_at(text.find("\n\n").unwrap());
    let scratch = tempfile::tempdir().unwrap();
    let lines = scratch.path().join("two.jsonl");
    let as_line = |text| serde_json::json!({ "page": text }).to_string();
    std::fs::write(&lines, [as_line(first), as_line(second)].join("\n")).unwrap();
    let both = report(&["--field", "page"], &lines);
    let alone = [first, second].map(|text| {
        let file = scratch.path().join("one.txt");
        std::fs::write(&file, text).unwrap();
        report(&[], &file)
    });
    let sum = |field: &str| -> f64 {
        let of_one = |report: &Value| {
            let value = report["result"][field].as_f64().unwrap();
            value * report["result"]["n_tokens_scored"].as_f64().unwrap()
        };
        alone.iter().map(of_one).sum()
    };
    let n = both["result"]["n_tokens_scored"].as_f64().unwrap();
    let loss = both["result"]["mean_negative_logprob"].as_f64().unwrap();
    assert!((loss * n - sum("mean_negative_logprob")).abs() < 1e-6 * n);
    assert_eq!(both["files"][0]["n_documents"], 2);
}

#[test]
fn what_cannot_be_scored_is_said() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("a.txt");
    std::fs::write(&file, "a").unwrap();
    for (arguments, message) in [
        (
            &["--stride", "8", "--window", "8"][..],
            "--stride 8 is not below --window 8",
        ),
        (
            &["--window", "9000"],
            "--window 9000 exceeds the model's context of 8192 tokens",
        ),
        (
            &["--prefix-token", "49152"],
            "--prefix-token 49152 is not one of",
        ),
        (&[], "there is no token to score"),
        (&["--window", "1"], "1 is not in 2.."),
    ] {
        let output = perplexity(arguments, &file);
        assert!(!output.status.success());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(message), "{arguments:?}: {errors}");
    }
    let output = perplexity(&[], &scratch.path().join("absent.txt"));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("cannot read")
    );
}
