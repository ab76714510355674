//! How much a stream is slowed by the compilation of an upload: a measurement,
//! whose figures are in `BENCHMARKS.md`.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::json;

use crate::binary::{Module, code, numbered};
use crate::events::Events;
use crate::guest;
use crate::server::Server;

/// Two megabytes of ordinary code, other code in each round.
fn large(round: u32) -> Vec<u8> {
    let function = |i: u32| {
        let mut body = vec![code::LOOP.to_vec()];
        for local in 0..4 {
            body.push(code::get(local));
            body.push(code::number((i * 7 + round * 1_000_003) as i32 & 0xffff));
            body.push(vec![code::ADD]);
            body.push(code::get((local + 1) % 4));
            body.push(vec![code::ADD]);
            body.push(code::LOAD.to_vec());
            body.push(code::set(local));
        }
        body.extend([code::get(0), code::branch_if(0), vec![code::END]]);
        let body: Vec<_> = body.iter().map(Vec::as_slice).collect();
        code::body(4, &body)
    };
    let component = numbered(&guest("counter"), round);
    Module::of(&component)
        .with_functions(26_000, function)
        .embedded()
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

const N_TOKENS: usize = 100;

/// Times from token to token of one answer, always the same one: later tokens
/// cost more.
async fn stream(server: &Server) -> Vec<Duration> {
    let body = json!({
        "prompt": "The history of the city of Rome begins", "max_tokens": N_TOKENS,
        "temperature": 0.8, "seed": 1, "ignore_eos": true,
    });
    let mut stream = Events::open(server, &body).await;
    let mut times = Vec::new();
    let mut last = Instant::now();
    while stream.next().await.is_some() {
        times.push(last.elapsed());
        last = Instant::now();
    }
    // The first waits for the prompt.
    times.split_off(1)
}

/// Milliseconds from token to token, with and without a compilation beside
/// them, in turn.
#[tokio::test]
#[ignore = "measures; takes a minute: run it alone, with --ignored --nocapture"]
async fn a_stream_beside_a_compilation() {
    let rounds = std::env::var("SLUICE_TEST_ROUNDS").map_or(5, |n| n.parse().unwrap());
    let server: &'static Server = Box::leak(Box::new(Server::start(&[])));
    stream(server).await;
    let (mut all_quiet, mut all_beside) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let upload = large(round);
        let n_bytes = upload.len();
        let mut quiet = stream(server).await;
        let begin = Instant::now();
        let uploading = tokio::spawn(async move { server.upload(upload).await });
        let mut beside = Vec::new();
        while !uploading.is_finished() {
            let times = stream(server).await;
            // One that the end of the compilation fell into is no measure.
            if !uploading.is_finished() || beside.is_empty() {
                beside.extend(times);
            }
        }
        let (status, answer) = uploading.await.unwrap();
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        let took = begin.elapsed();
        quiet.extend(stream(server).await);
        all_quiet.extend(&quiet);
        all_beside.extend(&beside);
        let (n, quiet, beside) = (beside.len(), median(&mut quiet), median(&mut beside));
        println!(
            "{n_bytes} bytes compiled in {took:.1?}: {quiet:.2} ms a token without, {beside:.2} \
             ms beside it ({n} tokens), {:+.1} %",
            (beside / quiet - 1.0) * 100.0
        );
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let (quiet, beside) = (median(&mut all_quiet), median(&mut all_beside));
    println!(
        "medians {quiet:.2} and {beside:.2} ms, {:+.1} %; load {load}",
        (beside / quiet - 1.0) * 100.0
    );
}
