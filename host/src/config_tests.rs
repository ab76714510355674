#![allow(clippy::unwrap_used)]

use super::*;

fn parse(arguments: &[&str]) -> Result<Command, clap::Error> {
    Cli::try_read([&["sluice"], arguments].concat())
}

fn serve(arguments: &[&str]) -> ServeConfig {
    match parse(arguments).unwrap() {
        Command::Serve(config) => *config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_declaration_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn serve_is_what_happens_without_a_command() {
    for arguments in [
        &["--port", "0", "--max-batch", "4"][..],
        &["serve", "--port", "0", "--max-batch", "4"],
    ] {
        let config = serve(arguments);
        assert_eq!((config.port, config.max_batch), (0, 4));
        assert_eq!(config.host, "127.0.0.1");
        assert_eq!(config.engine().max_batch, 4);
    }
    assert_eq!(serve(&[]).port, 8080);
}

#[test]
fn defaults_are_those_of_the_parts() {
    let config = serve(&[]);
    let engine = EngineConfig::default();
    assert_eq!(config.engine().prefill_chunk, engine.prefill_chunk);
    assert_eq!(config.engine().max_waiting, engine.max_waiting);
    assert_eq!(config.engine().kv_tokens, engine.kv_tokens);
    assert_eq!(config.engine().prefix_bytes, engine.prefix_bytes);
    assert_eq!(config.engine().draft_rows, engine.draft_rows);
    let limits = plugin::Limits::default();
    assert_eq!(config.plugins().max_instances, limits.max_instances);
    assert_eq!(
        config.plugins().max_instances_of_one,
        limits.max_instances_of_one
    );
    assert_eq!(config.plugins().wait, limits.wait);
    assert_eq!(config.plugins().call, limits.call);
    assert_eq!(config.plugins().patience, limits.patience);
    assert_eq!(config.plugins().late, limits.late);
    assert_eq!(config.plugins().total, limits.total);
    assert_eq!(config.plugins().open, limits.open);
    assert_eq!(config.plugins().memory_bytes, limits.memory_bytes);
    assert_eq!(
        config.plugins().total_memory_bytes,
        limits.total_memory_bytes
    );
    assert_eq!(config.plugins().prepare, limits.prepare);
    assert_eq!(config.plugins().upload_bytes, limits.upload_bytes);
    assert_eq!(config.plugins().max_plugins, limits.max_plugins);
    assert_eq!(config.plugins().compile, limits.compile);
    assert_eq!(config.plugins().compile_bytes, limits.compile_bytes);
    assert_eq!(config.plugins().breaker, limits.breaker);
    let requests = RequestLimits::default();
    assert_eq!(config.requests().request_bytes, requests.request_bytes);
    assert_eq!(config.requests().plugin_bytes, requests.plugin_bytes);
    assert_eq!(config.requests().choices, requests.choices);
    assert_eq!(config.requests().time, requests.time);
    assert_eq!(
        config.requests().uploads_per_minute,
        requests.uploads_per_minute
    );
    assert_eq!(config.requests().per_caller, requests.per_caller);
    assert_eq!(config.requests().step, requests.step);
    assert_eq!(config.endings(), Endings::default());
}

#[test]
fn values_out_of_range_are_refused() {
    assert!(parse(&["--max-batch", "0"]).is_err());
    assert!(parse(&["--port", "65536"]).is_err());
    assert!(parse(&["--no-such-flag"]).is_err());
    assert!(parse(&["no-such-command"]).is_err());
}

#[test]
fn the_compiler_takes_its_output() {
    let arguments = [
        "plugin-compile",
        "out.bin",
        "--vocabulary",
        "v",
        "--snapshot",
        "--compile-seconds",
        "40",
        "--compile-bytes",
        "2147483648",
        "--memory-bytes",
        "4096",
        "--open-ms",
        "5",
        "--parent",
        "7",
    ];
    let Command::PluginCompile(task) = parse(&arguments).unwrap() else {
        panic!("another command");
    };
    assert_eq!(task.output, PathBuf::from("out.bin"));
    assert_eq!(task.vocabulary, Some(PathBuf::from("v")));
    assert!(task.snapshot && !task.shipped);
    assert_eq!((task.compile_seconds, task.compile_bytes), (40, 2 << 30));
    assert_eq!((task.memory_bytes, task.open_ms, task.parent), (4096, 5, 7));
    let without = |name: &str| {
        let at = arguments.iter().position(|argument| *argument == name);
        let at = at.unwrap();
        parse(&[&arguments[..at], &arguments[at + 2..]].concat())
    };
    assert!(without("--parent").is_err());
    assert!(without("--vocabulary").is_err());
}
