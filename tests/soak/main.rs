//! Thirty-two clients that do everything at once, right and wrong, for so many
//! minutes (`SLUICE_TEST_SOAK_MINUTES`, default 0.4): every answer that is
//! whole equals that of the same request alone, every one that is cut is how
//! that begins, every error is one of `/openapi.json`, and afterwards nothing
//! is left. `SLUICE_TEST_SOAK_SEED` (default 1) gives other choices.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

#[path = "../support/binary.rs"]
mod binary;
mod clients;
mod connection;
mod document;
mod malformed;
mod outcome;
#[path = "../support/process.rs"]
mod process;
mod random;
mod requests;
#[path = "../support/server.rs"]
mod server;
mod tally;
mod uploads;
mod world;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};

use clients::{Client, ask_alone};
use document::Document;
use process::Process;
use random::Random;
use requests::Ask;
use server::Killable;
use tally::Tally;
use uploads::STAYING;
use world::{Footprint, World, at_rest, figure, get, get_json, median_mib, watch};

const N_CLIENTS: u64 = 32;
pub const MAX_BODY_BYTES: usize = 256 << 10;
pub const MAX_PLUGIN_BYTES: usize = 4 << 20;

/// A test component.
pub fn guest(name: &str) -> Vec<u8> {
    component(&format!("tests/guests/dist/{name}.wasm"))
}

fn component(path: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read(root.join(path)).unwrap()
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| {
        let parsed = value.parse();
        parsed.unwrap_or_else(|_| panic!("{name} is {value}"))
    })
}

/// Limits that other things on the machine do not reach, and small ones for
/// what is to be reached.
const COMMON: [&str; 14] = [
    "--plugin-call-ms",
    "1000",
    "--plugin-open-ms",
    "5000",
    "--plugin-compile-s",
    "5",
    "--max-plugin-bytes",
    "4194304",
    "--max-body-bytes",
    "262144",
    "--uploads-per-minute",
    "120",
    "--max-plugins",
    "60",
];

/// One sequence at a time, and each token computed on its own.
const ALONE: [&str; 8] = [
    "--max-batch",
    "1",
    "--draft-rows",
    "0",
    "--prefix-cache-mib",
    "0",
    "--plugin-max-faults",
    "0",
];

/// Too little of everything.
const CROWDED: [&str; 12] = [
    "--kv-tokens",
    "1000",
    "--prefix-cache-mib",
    "64",
    "--prefill-chunk",
    "64",
    "--max-waiting",
    "14",
    "--max-instances",
    "80",
    "--slow-reader-s",
    "3",
];

fn start(data: &Path, arguments: &[&str], log: Option<File>) -> Killable {
    Killable::start_with(data, |command| {
        command.args(COMMON).args(arguments);
        if let Some(log) = log {
            command.stderr(log);
        }
    })
}

/// What each request comes to on a server that does nothing else.
async fn ask_all_alone(pool: &mut [Ask]) {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path(), &ALONE, None);
    let address = server.client.url.replace("http://", "");
    upload_all(&server, true).await;
    for ask in pool {
        ask.alone = ask_alone(&address, ask.path, &ask.body).await;
        // A request that is refused says nothing of its company.
        if let Some(error) = &ask.alone.error {
            assert_eq!(error["code"], "plugin_error", "{}: {error}", ask.body);
        }
    }
}

/// Uploads what requests name.
async fn upload_all(server: &Killable, all: bool) {
    let staying = STAYING.map(component);
    let coming = requests::COMING_AND_GOING.map(guest);
    let coming = coming.into_iter().filter(|_| all);
    for bytes in staying.into_iter().chain(coming) {
        let (status, answer) = server.client.upload(bytes).await;
        assert!(status.is_success(), "{answer}");
    }
}

#[tokio::test]
async fn many_clients_at_once_leave_every_answer_right_and_nothing_behind() {
    let minutes: f64 = setting("SLUICE_TEST_SOAK_MINUTES", 0.4);
    let seed: u64 = setting("SLUICE_TEST_SOAK_SEED", 1);
    let time = Duration::from_secs_f64(minutes * 60.0);
    let n_asks = (24.0 * minutes).clamp(24.0, 96.0) as usize;
    let mut pool = requests::pool(seed, n_asks);
    let begin = Instant::now();
    ask_all_alone(&mut pool).await;
    println!("{n_asks} requests alone in {:.1?}", begin.elapsed());

    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let log_file = File::create(&log).unwrap();
    let mut server = start(data.path(), &CROWDED, Some(log_file));
    upload_all(&server, false).await;
    let address = server.client.url.replace("http://", "");
    let world = World {
        document: Document::new(get_json(&address, "/openapi.json").await),
        address: address.clone(),
        pool,
        tally: Tally::default(),
        is_long: minutes >= 3.0,
    };
    let process = Process(server.id());
    let begin = Instant::now();
    let end = begin + time;
    let clients = (0..N_CLIENTS).map(|i| {
        let random = Random::new(seed, i);
        let world = &world;
        Client { world, random }.work(end)
    });
    let (_, footprints) = tokio::join!(join_all(clients), watch(&process, begin, end));
    println!(
        "the last client was done {:.1?} after the end",
        end.elapsed()
    );

    check_rest(&world, &process, begin).await;
    for ask in world.pool.iter().step_by(3) {
        let again = ask_alone(&address, ask.path, &ask.body).await;
        let code = again
            .error
            .as_ref()
            .and_then(|error| error["code"].as_str());
        if !matches!(code, Some("plugin_not_found" | "plugin_disabled")) {
            again.check(&ask.alone).unwrap();
        }
    }
    let metrics = get(&address, "/metrics").await.1;
    show(&world.tally, &footprints, &metrics);
    for path in ["/health", "/ready"] {
        assert_eq!(get(&address, path).await.0, 200, "{path}");
    }
    let id = Pid::from_raw(server.id().cast_signed()).unwrap();
    kill_process(id, Signal::TERM).unwrap();
    assert_eq!(server.exit().code(), Some(0));
    check_log(&std::fs::read_to_string(&log).unwrap());
    check_memory(&footprints, minutes);
    check_tally(&world.tally, world.is_long, &metrics);
}

/// Nothing is under way, and nobody waits.
async fn check_rest(world: &World, process: &Process, begin: Instant) {
    match at_rest(&world.address, Duration::from_secs(30)).await {
        Ok(after) => println!("at rest after {after:.1?}"),
        Err(busy) => world.tally.fail("rest", busy),
    }
    println!("{:?}", Footprint::of(process, begin));
}

fn show(tally: &Tally, footprints: &[Footprint], metrics: &str) {
    println!("{tally}");
    let step = (footprints.len() / 30).max(1);
    for footprint in footprints.iter().step_by(step) {
        println!(
            "{:6.1} s: {:7.1} MiB, {} threads, {} files",
            footprint.after.as_secs_f64(),
            footprint.resident_bytes as f64 / f64::from(1 << 20),
            footprint.n_threads,
            footprint.n_files
        );
    }
    for name in [
        "sluice_step_seconds_count",
        "sluice_batch_rows_sum{kind=\"prompt\"}",
        "sluice_batch_rows_sum{kind=\"decode\"}",
        "sluice_preemptions_total",
        "sluice_cached_tokens_total",
        "sluice_completion_tokens_total",
    ] {
        println!("{name} {}", figure(metrics, name));
    }
}

/// Nothing in the log that must not be.
fn check_log(log: &str) {
    let bad: Vec<_> = log
        .lines()
        // What guests say, when they panic too, is under `plugin`.
        .filter(|line| !line.contains(" plugin: "))
        .filter(|line| line.contains("panicked") || line.contains("ERROR"))
        .collect();
    println!("{} lines of log", log.lines().count());
    assert!(bad.is_empty(), "{bad:#?}");
}

/// No failure, and everything was there; in a short time, most of it.
fn check_tally(tally: &Tally, is_long: bool, metrics: &str) {
    assert_eq!(tally.n_failures(), 0);
    let always = [
        ("plain", "equal"),
        ("stream", "equal"),
        ("hang up", ""),
        ("part", ""),
        ("upload", "201"),
        ("bad upload", "400"),
        ("malformed", ""),
    ];
    let in_time = [
        ("plain", "overloaded"),
        ("plain", "plugin_error"),
        ("plain", "plugin_disabled"),
        ("slow reader", "equal"),
        ("pipeline", "equal"),
        ("remove", "200"),
        ("leave upload", "left"),
        ("stall", "closed"),
        ("stall", "408"),
        ("no HTTP", "431"),
        ("malformed", "body_too_large"),
    ];
    let in_time = if is_long { &in_time[..] } else { &[] };
    for (action, outcome) in always.iter().chain(in_time) {
        assert!(tally.n(action, outcome) > 0, "{action}: no {outcome}");
    }
    let counts = ["preemptions", "cached_tokens"];
    for count in counts.iter().filter(|_| is_long) {
        let name = format!("sluice_{count}_total");
        assert!(figure(metrics, &name) > 0.0, "no {name}");
    }
}

/// Memory in the last minute is that of the third one, but for 5 %.
fn check_memory(footprints: &[Footprint], minutes: f64) {
    if minutes < 6.0 {
        return;
    }
    let early = median_mib(footprints, 150.0, 210.0);
    let late = median_mib(footprints, minutes * 60.0 - 60.0, minutes * 60.0);
    let more = (late / early - 1.0) * 100.0;
    println!("{early:.1} MiB in minute 3, {late:.1} MiB in the last: {more:+.1} %");
    assert!(more < 5.0, "{early} MiB, {late} MiB");
}
