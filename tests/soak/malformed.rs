//! Requests that are too long, or none.

use crate::clients::Client;
use crate::connection::{Answer, Reading, request};
use crate::requests::COMPLETIONS;
use crate::{MAX_BODY_BYTES, random::Random};

const ACTION: &str = "malformed";

/// Bodies that are refused, with the code.
const REFUSED: [(&str, &str); 16] = [
    ("", "invalid_body"),
    ("{", "invalid_body"),
    ("[]", "invalid_body"),
    (r#"{"prompt": "a", "prompt": "b"}"#, "invalid_body"),
    (r#"{"prompt": "\ud83d"}"#, "invalid_body"),
    (r#"{"prompt": "a", "temperature": 1e999}"#, "invalid_body"),
    (r#"{"prompt": "a", "colour": "blue"}"#, "unknown_field"),
    (r#"{"prompt": "a", "suffix": "b"}"#, "unsupported_field"),
    ("{}", "missing_field"),
    (r#"{"prompt": 5}"#, "invalid_value"),
    (r#"{"prompt": "a", "n": 1000000000000}"#, "invalid_value"),
    (r#"{"prompt": [99999999]}"#, "invalid_value"),
    (
        r#"{"prompt": "a", "mirostat": 2, "top_k": 3}"#,
        "conflicting_fields",
    ),
    (
        r#"{"prompt": "a", "chain": [{"plugin": "rules"}]}"#,
        "invalid_chain",
    ),
    (r#"{"prompt": "a", "model": "other"}"#, "model_not_found"),
    (
        r#"{"prompt": "a", "processors": [{"plugin": "none"}]}"#,
        "plugin_not_found",
    ),
];

pub async fn send(client: &mut Client<'_>) {
    match client.random.below(10) {
        0..4 => {
            let (body, code) = *client.random.pick(&REFUSED);
            refused(client, body.as_bytes(), code).await;
        }
        4 => {
            let ids = vec!["7"; 9000].join(",");
            let body = format!("{{\"prompt\": [{ids}]}}");
            refused(client, body.as_bytes(), "context_length_exceeded").await;
        }
        5 => too_large(client).await,
        6 | 7 => mutated(client).await,
        8 => nowhere(client).await,
        _ => no_http(client).await,
    }
}

async fn refused(client: &mut Client<'_>, body: &[u8], code: &str) {
    let operation = ("POST", COMPLETIONS);
    if let Some(answer) = client.exchange(ACTION, operation, body).await {
        let tally = &client.world.tally;
        match error_code(&answer) {
            found if found == code => tally.count(ACTION, found),
            found => {
                let body = String::from_utf8_lossy(&body[..body.len().min(300)]);
                tally.fail(ACTION, format!("{found} for {body}"));
            }
        }
    }
}

fn error_code(answer: &Answer) -> String {
    let value: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let code = value["error"]["code"].as_str();
    code.map_or_else(|| answer.status.to_string(), str::to_owned)
}

/// A body over the limit; one of a declared length, and one without.
async fn too_large(client: &mut Client<'_>) {
    let n = MAX_BODY_BYTES + 1 + client.random.below(MAX_BODY_BYTES);
    let body = vec![b' '; n];
    let bytes = if client.random.chance(50) {
        request("POST", COMPLETIONS, &body)
    } else {
        let mut bytes = format!(
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n{n:x}\r\n"
        )
        .into_bytes();
        bytes.extend(body);
        bytes.extend(b"\r\n0\r\n\r\n");
        bytes
    };
    let Some(mut connection) = client.connect(ACTION).await else {
        return;
    };
    let tally = &client.world.tally;
    // The answer comes before all is sent.
    let sent = connection.send(&bytes).await;
    match connection.answer(Reading::WHOLE).await {
        Ok(Some(answer)) if answer.status == 413 => {
            if client.documented(ACTION, ("POST", COMPLETIONS), &answer) {
                tally.count(ACTION, "body_too_large");
            }
        }
        Ok(Some(answer)) => tally.fail(ACTION, format!("{} for {n} bytes", answer.status)),
        Ok(None) => tally.fail(ACTION, format!("{n} bytes: no answer; sent: {sent:?}")),
        Err(error) => tally.fail(ACTION, format!("{n} bytes: {error}; sent: {sent:?}")),
    }
}

/// A good request with some bytes changed; whatever is documented is right.
async fn mutated(client: &mut Client<'_>) {
    let world = client.world;
    let ask = client.random.pick(&world.pool);
    let mut body = ask.body.to_string().into_bytes();
    for _ in 0..=client.random.below(4) {
        mutate(&mut body, &mut client.random);
    }
    if let Some(answer) = client.exchange(ACTION, ("POST", ask.path), &body).await {
        world.tally.count("mutated", error_code(&answer));
    }
}

pub fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(4) {
        0 => bytes[at] = random.next() as u8,
        1 => drop(bytes.remove(at)),
        2 => bytes.insert(at, *random.pick(b"{}[]\",:0129-.eE\\u")),
        _ => {
            let end = (at + random.below(20)).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            bytes.splice(at..at, copy);
        }
    }
    if bytes.is_empty() {
        bytes.push(b'{');
    }
}

/// A method or a path that there is not.
async fn nowhere(client: &mut Client<'_>) {
    let operation = *client.random.pick(&[
        ("GET", "/"),
        ("GET", "/v1/nothing"),
        ("GET", "/v1/completions"),
        ("DELETE", "/v1/models"),
        ("PATCH", "/v1/plugins/rules"),
        ("POST", "/metrics"),
        ("GET", "/v1/plugins/%FF%00"),
        ("GET", "/v1/plugins/../../etc/passwd"),
        ("PUT", "/v1/chat/completions"),
    ]);
    if let Some(answer) = client.exchange(ACTION, operation, b"{}").await {
        client.world.tally.count("nowhere", error_code(&answer));
    }
}

/// Bytes that are no request, or one with too large a head: answered with a
/// status alone, or by the end of the connection.
async fn no_http(client: &mut Client<'_>) {
    let bytes = match client.random.below(5) {
        0 => {
            let n = 1 + client.random.below(2000);
            client.random.bytes(n)
        }
        1 => b"GET / HTTP/1.1\r\nhost x\r\n\r\n".to_vec(),
        2 => format!(
            "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
            "a".repeat(70_000)
        )
        .into_bytes(),
        3 => format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(600_000)).into_bytes(),
        _ => format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(200)).into_bytes(),
    };
    let Some(mut connection) = client.connect(ACTION).await else {
        return;
    };
    // Fails where the server has had enough before the end.
    let _ = connection.send(&bytes).await;
    let reading = connection.answer(Reading::WHOLE);
    let tally = &client.world.tally;
    match tokio::time::timeout(std::time::Duration::from_secs(3), reading).await {
        Ok(Ok(Some(answer))) if matches!(answer.status, 400 | 414 | 431) => {
            tally.count("no HTTP", answer.status.to_string());
        }
        Ok(Ok(Some(answer))) => tally.fail("no HTTP", answer.status),
        Ok(Ok(None)) => tally.count("no HTTP", "closed"),
        Ok(Err(error)) => tally.fail("no HTTP", error),
        // Random bytes without an end of line may be a request that goes on.
        Err(_) => tally.count("no HTTP", "left"),
    }
}
