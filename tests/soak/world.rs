//! What all clients share, and how the server is seen from outside.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::connection::{Connection, End, Reading, request};
use crate::document::Document;
use crate::process::Process;
use crate::requests::Ask;
use crate::tally::Tally;

pub struct World {
    pub address: String,
    pub pool: Vec<Ask>,
    pub document: Document,
    pub tally: Tally,
    /// Whether there is time for what takes a minute.
    pub is_long: bool,
}

/// What the server's process holds at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    pub after: Duration,
    pub resident_bytes: u64,
    pub n_threads: u64,
    pub n_files: usize,
}

impl Footprint {
    pub fn of(process: &Process, begin: Instant) -> Self {
        Self {
            after: begin.elapsed(),
            resident_bytes: process.resident_with_files_bytes(),
            n_threads: process.n_threads(),
            n_files: process.n_files(),
        }
    }
}

/// Looks at the process every other second.
pub async fn watch(process: &Process, begin: Instant, end: Instant) -> Vec<Footprint> {
    let mut footprints = Vec::new();
    while Instant::now() < end {
        footprints.push(Footprint::of(process, begin));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    footprints
}

/// The middle one of the sizes in MiB between two moments, in seconds.
pub fn median_mib(footprints: &[Footprint], from: f64, to: f64) -> f64 {
    let mut sizes: Vec<_> = footprints
        .iter()
        .filter(|footprint| (from..=to).contains(&footprint.after.as_secs_f64()))
        .map(|footprint| footprint.resident_bytes)
        .collect();
    sizes.sort_unstable();
    let middle = sizes.get(sizes.len() / 2).copied().unwrap_or_default();
    middle as f64 / f64::from(1 << 20)
}

/// The status and body of a `GET`.
pub async fn get(address: &str, path: &str) -> (u16, String) {
    let mut connection = Connection::open(address).await.unwrap();
    connection.send(&request("GET", path, b"")).await.unwrap();
    let answer = connection.answer(Reading::WHOLE).await.unwrap().unwrap();
    assert_eq!(answer.end, End::Whole, "{path}");
    (answer.status, String::from_utf8(answer.body).unwrap())
}

pub async fn get_json(address: &str, path: &str) -> Value {
    serde_json::from_str(&get(address, path).await.1).unwrap()
}

/// A figure of `/metrics`, labels included.
pub fn figure(metrics: &str, name: &str) -> f64 {
    let found = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

/// What is zero when nothing is under way.
const AT_WORK: [&str; 4] = [
    "sluice_sequences_running",
    "sluice_sequences_waiting",
    "sluice_cache_claimed_tokens",
    "sluice_instances_memory_bytes",
];

/// Waits until the server says that nothing is under way.
///
/// # Errors
/// What still is after `patience`.
pub async fn at_rest(address: &str, patience: Duration) -> Result<Duration, String> {
    let begin = Instant::now();
    loop {
        let metrics = get(address, "/metrics").await.1;
        let busy: Vec<_> = AT_WORK
            .iter()
            .map(|name| (*name, figure(&metrics, name)))
            .filter(|(_, value)| *value != 0.0)
            .collect();
        if busy.is_empty() {
            return Ok(begin.elapsed());
        }
        if begin.elapsed() > patience {
            return Err(format!("after {patience:?}: {busy:?}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
