//! Variables that were not meant for this program, or not for the command that
//! runs: nothing fails for them that has no use for them, nothing shows a secret.

use std::process::{Command, Output};

use axum::http::StatusCode;

use crate::binary::numbered;
use crate::guest;
use crate::server::Killable;

/// What Kubernetes puts into every pod beside a service called `sluice`.
const PORT: (&str, &str) = ("SLUICE_PORT", "tcp://10.0.0.1:8080");
/// No collector that a server would take, and a password in it.
const COLLECTOR: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hush@c:4317");

fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn errors(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_command_does_not_read_the_servers_variables() {
    let bad = [
        PORT,
        COLLECTOR,
        ("SLUICE_MAX_BATCH", "many"),
        ("SLUICE_CORS_ORIGIN", "nowhere"),
    ];
    let component = crate::in_repository("tests/guests/dist/identity.wasm");
    let component = component.to_str().unwrap();
    let checked = run(&["plugin", "check", component], &bad);
    assert!(checked.status.success(), "{checked:?}");
    // These two get as far as what they themselves were given.
    let server = "http://127.0.0.1:1";
    let error = errors(&run(&["plugin", "list", "--server", server], &bad));
    assert!(error.contains("127.0.0.1:1"), "{error}");
    let error = errors(&run(
        &["perplexity", "--model", "/no/such/model", "/no"],
        &bad,
    ));
    assert!(
        !error.contains("SLUICE_") && !error.contains("--port"),
        "{error}"
    );
    assert!(error.contains("/no"), "{error}");
}

#[tokio::test]
async fn a_flag_wins_over_a_variable() {
    let data = tempfile::tempdir().unwrap();
    let process = Killable::start_with(data.path(), |command| {
        command.envs([PORT, ("OTEL_EXPORTER_OTLP_ENDPOINT", "")]);
    });
    // No other test has compiled these bytes.
    let component = numbered(&guest("identity"), 417);
    let (status, answer) = process.client.upload(component).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}

#[tokio::test]
async fn a_collector_is_not_looked_at_where_tracing_is_off() {
    let data = tempfile::tempdir().unwrap();
    let process = Killable::start_with(data.path(), |command| {
        command.envs([COLLECTOR, ("OTEL_SDK_DISABLED", "true")]);
    });
    let (status, _) = process.client.get("/health").await;
    assert_eq!(status, StatusCode::OK);
}

#[test]
fn a_port_of_kubernetes_is_told_as_such() {
    for arguments in [&[][..], &["serve"]] {
        let error = errors(&run(arguments, &[PORT]));
        assert!(
            error.contains("Kubernetes") && error.contains("--port"),
            "{error}"
        );
    }
}

#[test]
fn no_password_of_a_collector_is_shown() {
    let serve = ["serve", "--port", "0"];
    let flag = [&serve[..], &["--otlp-endpoint", COLLECTOR.1]].concat();
    let traces = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", COLLECTOR.1),
    ];
    for (arguments, variables) in [
        (&serve[..], &[COLLECTOR][..]),
        (&flag, &[]),
        (&serve, &traces),
    ] {
        let error = errors(&run(arguments, variables));
        assert!(error.contains("OTEL_EXPORTER_OTLP"), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
    for arguments in [&["--help"][..], &["serve", "--help"]] {
        let help = run(arguments, &[COLLECTOR]).stdout;
        let help = String::from_utf8(help).unwrap();
        assert!(help.contains("[env: SLUICE_PORT="), "{help}");
        assert!(
            help.contains("[env: OTEL_EXPORTER_OTLP_ENDPOINT]"),
            "{help}"
        );
        assert!(!help.contains("hush"), "{help}");
    }
}
