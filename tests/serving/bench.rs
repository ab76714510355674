//! `sluice bench` measures what it says, on the real model and a real server.

use std::process::Command;

use serde_json::Value;

use crate::server::Server;

/// What `sluice bench` prints with `--json`.
fn bench(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["bench", "--json", "--rounds", "1"])
        .args(arguments)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn chains(answer: &Value) -> Vec<&str> {
    let rows = answer["rows"].as_array().unwrap().iter();
    rows.map(|row| row["chain"].as_str().unwrap()).collect()
}

/// All decode beside each other without an end, the grammar's text included.
#[test]
fn every_arm_decodes() {
    let arms = "none,sampler,tokens,greedy,default,dry,mirostat,xtc,min-p,typical,no-repeat,\
                bad-words,mixed,grammar";
    let answer = bench(&[
        "--batch",
        "8",
        "--prompt-tokens",
        "4",
        "--tokens",
        "24",
        "--chain",
        arms,
    ]);
    assert_eq!(chains(&answer).join(","), arms);
    for row in answer["rows"].as_array().unwrap() {
        assert_eq!(row["step_ms_rounds"].as_array().unwrap().len(), 1);
        assert!(row["step_ms_median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["by_none"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["chain_us"].as_f64().unwrap() > 0.0, "{row}");
    }
    let ratios = answer["ratios"].as_array().unwrap();
    let of: Vec<_> = ratios.iter().map(|ratio| &ratio["chain"]).collect();
    assert_eq!(of, ["mixed", "grammar"]);
}

#[test]
fn memory_prompts_and_opened_chains_are_measured() {
    let read = bench(&[
        "--batch",
        "1",
        "--tokens",
        "2",
        "--chain",
        "none",
        "--read-mib",
        "8",
    ]);
    assert!(read["read_gb_per_second"]["median"].as_f64().unwrap() > 0.0);

    let prompts = bench(&["--prefill", "8,20", "--chain", "greedy"]);
    let rows = prompts["rows"].as_array().unwrap();
    let lengths: Vec<_> = rows.iter().map(|row| &row["prompt_tokens"]).collect();
    assert_eq!(lengths, [8, 20]);
    for row in rows {
        let first = row["first_token_s"]["median"].as_f64().unwrap();
        let speed = row["prompt_tokens"].as_f64().unwrap() / first;
        assert!((row["tokens_per_second"].as_f64().unwrap() - speed).abs() < 1e-6);
    }

    let opened = bench(&["--open", "4", "--chain", "none,sampler,default"]);
    assert_eq!(chains(&opened), ["sampler", "default"]);
    assert_eq!(opened["rows"][1]["n_instances"], 3);
}

#[test]
fn a_server_is_measured_with_fields_and_with_chains() {
    let url = &Server::shared().url;
    let answer = bench(&[
        "--serve",
        url,
        "--concurrency",
        "2",
        "--prompt-tokens",
        "4",
        "--tokens",
        "5",
        "--chain",
        "greedy,mixed",
    ]);
    assert_eq!(chains(&answer), ["greedy", "mixed"]);
    for row in answer["rows"].as_array().unwrap() {
        assert_eq!(row["requests"], 2);
        assert!(row["tokens_per_second"].as_f64().unwrap() > 0.0, "{row}");
    }
}
