//! `sluice bench --serve`: what a running server gives to many clients at once,
//! measured where they are: over HTTP.

use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode, header};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Arm, BenchArgs, BenchError, quantile, rows};

/// Most tokens of the requests that warm a server up.
const WARM_UP: u32 = 4;

/// Which server is measured, and by how many clients.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    /// Measure a running server over HTTP instead, also another that speaks
    /// OpenAI's protocol; `--tokens` is then a request's, and each client sends
    /// as many requests as there are rounds
    #[arg(long, value_name = "URL")]
    pub serve: Option<String>,
    /// Clients at once
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,8,16,64",
        requires = "serve"
    )]
    pub concurrency: Vec<usize>,
    /// The secret of a token, if the server asks for one
    #[arg(
        long,
        env = "SLUICE_TOKEN",
        hide_env_values = true,
        value_name = "SECRET",
        requires = "serve"
    )]
    pub token: Option<String>,
}

/// What clients saw at one concurrency and chain.
#[derive(Debug, Serialize)]
struct Figures {
    concurrency: usize,
    /// Words of a prompt.
    prompt_words: u32,
    chain: &'static str,
    requests: usize,
    /// Generated tokens of all clients by the time of them all.
    tokens_per_second: f64,
    /// From the request to its first token.
    first_token_ms: Quantiles,
    /// From token to token.
    next_token_ms: Quantiles,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p90: f64,
    p99: f64,
}

impl Quantiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|share| quantile(&times, share));
        Self { p50, p90, p99 }
    }
}

/// What the requests of one client came to.
#[derive(Default)]
struct Seen {
    n_tokens: u64,
    first: Vec<Duration>,
    next: Vec<Duration>,
}

/// Measures and prints.
///
/// # Errors
/// When the server cannot be reached or does not answer as it should.
pub(super) fn run(url: &str, args: &BenchArgs) -> Result<(), BenchError> {
    let failed = |error: String| BenchError::Server(error);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(error.to_string()))?;
    let target = Target {
        client: Client::builder(TokioExecutor::new()).build_http(),
        url: format!("{}/v1/completions", url.trim_end_matches('/')),
        token: args.server.token.clone(),
    };
    let mut figures = Vec::new();
    for &concurrency in &args.server.concurrency {
        for &prompt_words in &args.prompt_tokens {
            for &arm in args.chain.iter().filter(|arm| !arm.is_native()) {
                let load = Load {
                    concurrency,
                    prompt_words,
                    arm,
                };
                figures.push(runtime.block_on(target.measure(load, args))?);
            }
        }
    }
    if args.json {
        println!("{}", rows(&figures));
    } else {
        print!("{}", table(&figures));
    }
    Ok(())
}

/// Who asks for what.
#[derive(Clone, Copy)]
struct Load {
    concurrency: usize,
    prompt_words: u32,
    arm: &'static Arm,
}

struct Target {
    client: Client<HttpConnector, Body>,
    url: String,
    token: Option<String>,
}

impl Target {
    async fn measure(&self, load: Load, args: &BenchArgs) -> Result<Figures, BenchError> {
        // One short request each opens the connections and warms the server up.
        let n_requests = load.concurrency * args.rounds as usize;
        let warm_up = args.tokens.min(WARM_UP);
        self.clients(load, n_requests, warm_up, 1).await?;
        let started = Instant::now();
        let seen = self.clients(load, 0, args.tokens, args.rounds).await?;
        let time = started.elapsed();
        let n_tokens: u64 = seen.iter().map(|seen| seen.n_tokens).sum();
        let all = |of: fn(&Seen) -> &Vec<Duration>| seen.iter().flat_map(of).copied().collect();
        Ok(Figures {
            concurrency: load.concurrency,
            prompt_words: load.prompt_words,
            chain: load.arm.name,
            requests: n_requests,
            tokens_per_second: n_tokens as f64 / time.as_secs_f64(),
            first_token_ms: Quantiles::of(all(|seen| &seen.first)),
            next_token_ms: Quantiles::of(all(|seen| &seen.next)),
        })
    }

    /// So many clients at once, each with so many requests one after the other,
    /// which are numbered from `first`.
    async fn clients(
        &self,
        load: Load,
        first: usize,
        n_tokens: u32,
        n_requests: u32,
    ) -> Result<Vec<Seen>, BenchError> {
        try_join_all((0..load.concurrency).map(|client| async move {
            let mut seen = Seen::default();
            for round in 0..n_requests {
                let number = first + client * n_requests as usize + round as usize;
                let body = load.body(number, n_tokens)?;
                self.request(&body, &mut seen).await?;
            }
            Ok(seen)
        }))
        .await
    }

    async fn request(&self, body: &Value, seen: &mut Seen) -> Result<(), BenchError> {
        let failed = |error: String| BenchError::Server(format!("{}: {error}", self.url));
        let mut request = Request::post(&self.url).header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Body::from(body.to_string()))
            .map_err(|error| failed(error.to_string()))?;
        let mut last = Instant::now();
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        let status = answer.status();
        let mut frames = Body::new(answer.into_body()).into_data_stream();
        let mut events = Events::default();
        let mut n_shown = 0;
        let mut n_counted = None;
        while let Some(frame) = frames.next().await {
            let frame = frame.map_err(|error| failed(error.to_string()))?;
            if status != StatusCode::OK {
                let said = String::from_utf8_lossy(&frame);
                return Err(failed(format!("it answers {status}: {said}")));
            }
            for event in events.push(&frame) {
                if let Some(error) = event.get("error") {
                    return Err(failed(format!("its stream ends in {error}")));
                }
                n_counted = event["usage"]["completion_tokens"].as_u64().or(n_counted);
                let text = event["choices"][0]["text"].as_str().unwrap_or_default();
                if text.is_empty() {
                    continue;
                }
                let times = match n_shown {
                    0 => &mut seen.first,
                    _ => &mut seen.next,
                };
                times.push(last.elapsed());
                last = Instant::now();
                n_shown += 1;
            }
        }
        seen.n_tokens += n_counted.unwrap_or(n_shown);
        Ok(())
    }
}

impl Load {
    /// The request of that number: words, as other servers take no tokens. It
    /// begins as no other does, and has no seed: `mlx_lm.server` does not batch
    /// those that have one.
    fn body(&self, number: usize, n_tokens: u32) -> Result<Value, BenchError> {
        const WORDS: [&str; 7] = ["sea", "ship", "wind", "salt", "rope", "star", "shore"];
        let word = |i| WORDS[(number + i * (1 + number % 6)) % 7];
        let words: Vec<_> = (0..self.prompt_words as usize).map(word).collect();
        let mut body = json!({
            "prompt": format!("{number}. {}", words.join(" ")),
            "max_tokens": n_tokens, "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(body) = body.as_object_mut() {
            body.extend(self.arm.fields(number)?);
        }
        Ok(body)
    }
}

/// The events of a stream, of which frames may be parts.
#[derive(Default)]
struct Events {
    rest: Vec<u8>,
}

impl Events {
    /// The events that this frame completes; what is no JSON is none.
    fn push(&mut self, frame: &Bytes) -> Vec<Value> {
        self.rest.extend_from_slice(frame);
        let Some(end) = self.rest.windows(2).rposition(|pair| pair == b"\n\n") else {
            return Vec::new();
        };
        let rest = self.rest.split_off(end + 2);
        let complete = std::mem::replace(&mut self.rest, rest);
        complete
            .split(|&byte| byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line.strip_prefix(b"data: ")?).ok())
            .collect()
    }
}

/// A table for people.
fn table(figures: &[Figures]) -> String {
    use std::fmt::Write;
    let mut table = String::from(
        "| clients | chain | tokens/s | first token, ms: 50, 90, 99 % | next token, ms: 50, 90, 99 % |\n\
         |---|---|---|---|---|\n",
    );
    for f in figures {
        let [first, next] = [&f.first_token_ms, &f.next_token_ms]
            .map(|q| format!("{:.1}, {:.1}, {:.1}", q.p50, q.p90, q.p99));
        let _ = writeln!(
            table,
            "| {} | {} | {:.0} | {first} | {next} |",
            f.concurrency, f.chain, f.tokens_per_second,
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_together_from_any_frames() {
        let text = "data: {\"a\": \"é\"}\n\n: ping\n\ndata: {\"a\": 2}\n\ndata: [DONE]\n\n";
        for size in 1..text.len() {
            let mut events = Events::default();
            let frames = text.as_bytes().chunks(size);
            let found: Vec<_> = frames
                .flat_map(|frame| events.push(&Bytes::copy_from_slice(frame)))
                .collect();
            assert_eq!(found, [json!({"a": "é"}), json!({"a": 2})], "{size}");
        }
    }
}
