//! Plugins that come, go, and are none.

use crate::clients::Client;
use crate::connection::Connection;
use crate::malformed::mutate;
use crate::requests::COMING_AND_GOING;
use crate::{MAX_PLUGIN_BYTES, binary, guest};

/// Uploaded before, and never removed: requests are compared with what these
/// do.
pub const STAYING: [&str; 7] = [
    "tests/guests/dist/misbehave-token.wasm",
    "tests/guests/dist/misbehave-logits.wasm",
    "tests/guests/dist/misbehave-sampler.wasm",
    "tests/guests/dist/dice.wasm",
    "tests/guests/dist/identity.wasm",
    "tests/guests/dist/slow.wasm",
    "examples/dist/ban-words.wasm",
];

const N_VERSIONS: usize = 4;

pub async fn act(client: &mut Client<'_>) {
    match client.random.below(20) {
        0..7 => upload_version(client).await,
        7..12 => remove(client).await,
        12..14 => enable(client).await,
        14 => leave_upload(client).await,
        _ => upload_bad(client).await,
    }
}

/// One of the versions of a plugin that requests name.
fn version(client: &mut Client<'_>) -> Vec<u8> {
    let name = *client.random.pick(&COMING_AND_GOING);
    binary::numbered(&guest(name), client.random.below(N_VERSIONS) as u32)
}

async fn upload_version(client: &mut Client<'_>) {
    let bytes = version(client);
    upload(client, "upload", &bytes, &[200, 201, 409]).await;
}

async fn upload(client: &mut Client<'_>, action: &'static str, bytes: &[u8], good: &[u16]) {
    let answer = client.exchange(action, ("PUT", "/v1/plugins"), bytes).await;
    let Some(answer) = answer else {
        return;
    };
    let tally = &client.world.tally;
    // Too many in a minute are refused by a 429.
    if good.contains(&answer.status) || answer.status == 429 {
        tally.count(action, answer.status.to_string());
    } else {
        let body = String::from_utf8_lossy(&answer.body);
        tally.fail(action, format!("{}: {body}", answer.status));
    }
}

/// A version, all of them, or one that is used by its number.
async fn remove(client: &mut Client<'_>) {
    let name = *client.random.pick(&COMING_AND_GOING);
    let reference = match client.random.below(10) {
        0..2 => name.to_owned(),
        2 => "rules".to_owned(),
        _ => {
            let n = client.random.below(N_VERSIONS);
            format!("{name}@0.0.{n}")
        }
    };
    let path = format!("/v1/plugins/{reference}");
    let answer = client.exchange("remove", ("DELETE", &path), b"").await;
    if let Some(answer) = answer {
        client
            .world
            .tally
            .count("remove", answer.status.to_string());
    }
}

async fn enable(client: &mut Client<'_>) {
    let all = ["misbehave-token", "misbehave-logits", "misbehave-sampler"];
    let path = format!("/v1/plugins/{}/enable", client.random.pick(&all));
    let answer = client.exchange("enable", ("POST", &path), b"").await;
    if let Some(answer) = answer {
        client
            .world
            .tally
            .count("enable", answer.status.to_string());
    }
}

/// Leaves while its upload is read or compiled.
async fn leave_upload(client: &mut Client<'_>) {
    let bytes = crate::connection::request("PUT", "/v1/plugins", &version(client));
    let part = if client.random.chance(50) {
        client.random.below(bytes.len())
    } else {
        bytes.len()
    };
    let wait = std::time::Duration::from_millis(client.random.below(400) as u64);
    if let Ok(mut connection) = Connection::open(&client.world.address).await {
        let sent = connection.send(&bytes[..part]).await;
        tokio::time::sleep(wait).await;
        connection.leave(crate::connection::Leave::Reset).await;
        let outcome = if sent.is_ok() { "left" } else { "refused" };
        client.world.tally.count("leave upload", outcome);
    }
}

/// Random bytes, changed components, and ones that fail while they are
/// described, prepared or compiled.
async fn upload_bad(client: &mut Client<'_>) {
    let action = "bad upload";
    match client.random.below(12) {
        0..2 => {
            let n = client.random.below(5000);
            let bytes = client.random.bytes(n);
            upload(client, action, &bytes, &[400]).await;
        }
        2..4 => {
            let whole = guest("recorder");
            let part = client.random.below(whole.len());
            upload(client, action, &whole[..part], &[400]).await;
        }
        4..8 => {
            // May still be a plugin, which nobody uses.
            let mut bytes = guest("recorder");
            for _ in 0..=client.random.below(3) {
                mutate(&mut bytes, &mut client.random);
            }
            upload(client, action, &bytes, &[200, 201, 400, 409]).await;
        }
        8 => upload(client, action, &guest("trap-describe"), &[400]).await,
        9 => {
            upload(
                client,
                action,
                &guest("trap-prepare"),
                &[200, 201, 400, 409],
            )
            .await;
        }
        10 => upload(client, action, &vec![0; MAX_PLUGIN_BYTES + 1], &[413]).await,
        _ if client.random.chance(20) => {
            let module = binary::Module::of(&guest("counter"));
            let bomb = module.with_functions(1, |_| binary::nested_loops());
            upload(client, action, &bomb.embedded(), &[400]).await;
        }
        _ => upload(client, action, &guest("spin-describe"), &[400]).await,
    }
}
