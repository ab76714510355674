//! The commands that name a server.

use std::fs;
use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::server::Server;
use crate::{guest, plugin};

#[test]
fn a_server_is_served_with_plugins() {
    let server = Server::start(&[]);
    let ask = |arguments: &[&str]| {
        let run = plugin(&[arguments, &["--server", &server.url]].concat());
        (run.code, run.output, run.errors)
    };
    let (code, output, errors) = ask(&["push", &guest("identity")]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(
        output.starts_with("identity@0.1.0, a logits-processor, sha256:"),
        "{output}"
    );
    let (_, output, _) = ask(&["push", &guest("identity")]);
    assert!(output.ends_with(", known before\n"), "{output}");

    let (_, output, _) = ask(&["list"]);
    let line = output
        .lines()
        .find(|line| line.starts_with("identity "))
        .unwrap();
    assert!(
        line.contains("0.1.0") && line.ends_with("uploaded"),
        "{line}"
    );
    assert!(output.contains("came with the server"), "{output}");

    let (_, output, _) = ask(&["show", "identity@0.1.0"]);
    let shown: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(shown["kind"], "logits-processor");
    assert_eq!(shown["log"], json!([]));

    let (code, output, _) = ask(&["remove", "identity"]);
    assert_eq!(
        (code, output.as_str()),
        (Some(0), "removed identity@0.1.0, a logits-processor\n")
    );
    let (code, _, errors) = ask(&["remove", "identity"]);
    assert_eq!(code, Some(1));
    assert!(
        errors.contains("404") && errors.contains("identity"),
        "{errors}"
    );
    let (code, _, errors) = ask(&["push", &guest("trap-describe")]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("`describe`"), "{errors}");
}

/// Without a token, and with one that may not, the server's reason is shown.
#[test]
fn a_token_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    fs::write(
        &tokens,
        "ann generate reader-of-the-list-0001\nben generate,upload writer-of-plugins-0001\n",
    )
    .unwrap();
    let server = Server::start(&["--tokens", tokens.to_str().unwrap()]);
    let push = |more: &[&str]| {
        let component = guest("identity");
        plugin(&[&["push", &component, "--server", &server.url], more].concat())
    };
    let errors = push(&[]).errors;
    assert!(
        errors.contains("401") && errors.contains("SLUICE_TOKEN"),
        "{errors}"
    );
    let errors = push(&["--token", "nobody-knows-this-one-0001"]).errors;
    assert!(errors.contains("does not know this token"), "{errors}");
    let run = push(&["--token", "reader-of-the-list-0001"]);
    assert!(run.errors.contains("403"), "{}", run.errors);
    let run = push(&["--token", "writer-of-plugins-0001"]);
    assert_eq!(run.code, Some(0), "{}", run.errors);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    // Nothing listens on the discard port.
    let run = plugin(&["list", "--server", "http://127.0.0.1:9"]);
    assert_eq!(run.code, Some(1));
    assert!(
        run.errors.contains("http://127.0.0.1:9 does not answer"),
        "{}",
        run.errors
    );
    // Something else listens there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 1024];
        let _ = stream.read(&mut head).unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
            .unwrap();
    });
    let run = plugin(&["list", "--server", &url]);
    other.join().unwrap();
    assert_eq!(run.code, Some(1));
    assert!(run.errors.contains("another server"), "{}", run.errors);
    let run = plugin(&["list", "--server", "https://localhost"]);
    assert!(
        run.errors.contains("must begin with http://"),
        "{}",
        run.errors
    );
}
