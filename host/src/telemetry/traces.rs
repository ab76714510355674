//! Spans of requests and of the steps that worked on them.
//!
//! A request that is sampled has a mark, and each step of the engine says which
//! marks were in it. Everything that makes spans of that is on a thread of its
//! own: the engine's only sends it a few numbers, and only for steps with a mark.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use axum::http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};

use super::otlp::{Environment, SPANS, TracesError, provider};
use super::request::{Generation, RequestFacts};
use super::steps::Steps;
use crate::engine::{Phases, StepFigures};

/// The most steps that wait to become spans; more are counted nowhere.
const MOST_STEPS: usize = 4096;

/// Makes spans and has them exported; cheap to clone.
#[derive(Clone, Debug)]
pub struct Traces {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    messages: mpsc::Sender<Message>,
    clock: Clock,
    next_mark: Arc<AtomicU64>,
    n_steps: Arc<AtomicUsize>,
}

/// When something was, by one reading of both clocks: so spans lie in one another
/// as the work did, whatever becomes of the time of day.
#[derive(Clone, Copy, Debug)]
struct Clock {
    read: Instant,
    time: SystemTime,
}

impl Clock {
    fn start() -> Self {
        Self {
            read: Instant::now(),
            time: SystemTime::now(),
        }
    }

    /// The time of day of an instant after the start.
    fn at(self, instant: Instant) -> SystemTime {
        self.time + instant.saturating_duration_since(self.read)
    }
}

/// The span of a request that is under way, until its holder ends it.
#[derive(Debug)]
pub struct RequestSpan {
    span: Span,
    mark: u64,
    traces: Traces,
}

#[derive(Debug)]
enum Message {
    /// Steps with this mark belong to the span in this context.
    Begin {
        mark: u64,
        context: Context,
    },
    Step(StepFigures),
    End(Box<Ended>),
    /// Answered once everything before it is done.
    Flush(mpsc::SyncSender<()>),
}

#[derive(Debug)]
struct Ended {
    span: Span,
    mark: u64,
    facts: RequestFacts,
    at: Instant,
}

impl Traces {
    /// Starts to export to `collector`; none if OpenTelemetry's variables say so.
    ///
    /// # Errors
    /// When it is no collector's address, or a variable asks for what cannot be
    /// done.
    pub fn start(collector: &str) -> Result<Option<Self>, TracesError> {
        // What is no text is no value that is known, and so not lost here.
        let get = |name: &str| Some(std::env::var_os(name)?.to_string_lossy().into_owned());
        let Some(environment) = Environment::read(get)? else {
            return Ok(None);
        };
        let collector = collector.parse().map_err(TracesError::Collector)?;
        let provider = provider(&collector, &environment)?;
        tracing::info!("spans go to {collector}");
        let (messages, inbox) = mpsc::channel();
        let traces = Self {
            tracer: provider.tracer("sluice"),
            provider,
            messages,
            clock: Clock::start(),
            next_mark: Arc::default(),
            n_steps: Arc::default(),
        };
        let maker = Maker {
            tracer: traces.tracer.clone(),
            clock: traces.clock,
            n_steps: traces.n_steps.clone(),
            requests: HashMap::new(),
        };
        thread::Builder::new()
            .name("sluice-traces".into())
            .spawn(move || maker.run(inbox))
            .map_err(TracesError::Thread)?;
        Ok(Some(traces))
    }

    /// Begins the span of a request: a child of the caller's, if its headers
    /// name one. None if it is not sampled.
    pub fn begin(&self, method: &str, route: &str, headers: &HeaderMap) -> Option<RequestSpan> {
        let headers = HeaderExtractor(headers);
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        let (_, name) = names_of(method);
        let span = SpanBuilder::from_name(format!("{name} {route}"))
            .with_kind(SpanKind::Server)
            .with_start_time(self.clock.at(Instant::now()))
            .start_with_context(&self.tracer, &parent);
        if !span.is_recording() {
            return None;
        }
        let mark = self.next_mark.fetch_add(1, Relaxed);
        let context = Context::new().with_remote_span_context(span.span_context().clone());
        let _ = self.messages.send(Message::Begin { mark, context });
        Some(RequestSpan {
            span,
            mark,
            traces: self.clone(),
        })
    }

    /// What the engine tells of its steps.
    pub fn observer(&self) -> impl Fn(StepFigures) + Send + Sync + 'static {
        let (messages, n_steps) = (self.messages.clone(), self.n_steps.clone());
        move |figures: StepFigures| {
            if !figures.marks.is_empty() && n_steps.load(Relaxed) < MOST_STEPS {
                n_steps.fetch_add(1, Relaxed);
                let _ = messages.send(Message::Step(figures));
            }
        }
    }

    /// Exports what there is, for at most this time. No more is exported then.
    pub fn shutdown(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let (done, flushed) = mpsc::sync_channel(1);
        if self.messages.send(Message::Flush(done)).is_ok() {
            let _ = flushed.recv_timeout(patience);
        }
        let left = until.saturating_duration_since(Instant::now());
        // Whoever did not take them has been complained of.
        let _ = self.provider.shutdown_with_timeout(left);
    }
}

impl RequestSpan {
    /// The mark of the request's sequences.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// As 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        self.span.span_context().trace_id().to_string()
    }

    /// Ends it, with what there is to say of the request.
    pub fn end(self, facts: RequestFacts) {
        let ended = Ended {
            span: self.span,
            mark: self.mark,
            facts,
            at: Instant::now(),
        };
        let _ = self.traces.messages.send(Message::End(Box::new(ended)));
    }
}

/// Makes spans of what it is told.
struct Maker {
    tracer: SdkTracer,
    clock: Clock,
    n_steps: Arc<AtomicUsize>,
    requests: HashMap<u64, Traced>,
}

/// A request under way.
struct Traced {
    context: Context,
    steps: Steps,
    /// When its first step began.
    began: Option<SystemTime>,
}

impl Maker {
    fn run(mut self, inbox: mpsc::Receiver<Message>) {
        for message in inbox {
            match message {
                Message::Begin { mark, context } => {
                    let traced = Traced {
                        context,
                        steps: Steps::default(),
                        began: None,
                    };
                    self.requests.insert(mark, traced);
                }
                Message::Step(mut figures) => {
                    self.n_steps.fetch_sub(1, Relaxed);
                    // Choices of one request have one mark.
                    let mut marks = std::mem::take(&mut figures.marks);
                    marks.sort_unstable();
                    marks.dedup();
                    for mark in marks {
                        self.step(mark, &figures);
                    }
                }
                Message::End(ended) => self.end(*ended),
                Message::Flush(done) => {
                    let _ = done.send(());
                }
            }
        }
    }

    fn step(&mut self, mark: u64, figures: &StepFigures) {
        let Some(traced) = self.requests.get_mut(&mark) else {
            return;
        };
        let began = self.clock.at(figures.started);
        traced.began.get_or_insert(began);
        if !traced.steps.count(figures) {
            return;
        }
        let mut attributes = vec![
            KeyValue::new("sluice.step.index", figures.index as i64),
            KeyValue::new("sluice.batch.sequences", figures.running as i64),
            KeyValue::new("sluice.batch.prompt_rows", figures.prompt_rows as i64),
            KeyValue::new("sluice.batch.decode_rows", figures.decode_rows as i64),
        ];
        attributes.extend(times(figures.phases));
        let mut span = SpanBuilder::from_name("step")
            .with_kind(SpanKind::Internal)
            .with_start_time(began)
            .with_attributes(attributes)
            .start_with_context(&self.tracer, &traced.context);
        span.end_with_timestamp(began + figures.step);
        SPANS.ended.fetch_add(1, Relaxed);
    }

    fn end(&mut self, ended: Ended) {
        let Ended {
            mut span,
            mark,
            facts,
            at,
        } = ended;
        let traced = self.requests.remove(&mark);
        set_facts(&mut span, &facts, self.clock);
        if let Some(traced) = traced.filter(|traced| traced.steps.n > 0) {
            let steps = traced.steps;
            if let Some(began) = traced.began {
                span.add_event_with_timestamp("first step", began, Vec::new());
            }
            span.set_attributes([
                KeyValue::new("sluice.steps.count", i64::from(steps.n)),
                KeyValue::new("sluice.steps.shown", i64::from(steps.n_shown)),
                KeyValue::new("sluice.steps.longest_ms", milliseconds(steps.longest)),
            ]);
            span.set_attributes(times(steps.phases));
        }
        span.end_with_timestamp(self.clock.at(at));
        SPANS.ended.fetch_add(1, Relaxed);
    }
}

/// A method in an attribute and in the name of a span, as OpenTelemetry has it:
/// what a client invents is no name of its own.
fn names_of(method: &str) -> (&str, &str) {
    match method {
        "CONNECT" | "DELETE" | "GET" | "HEAD" | "OPTIONS" | "PATCH" | "POST" | "PUT" | "TRACE" => {
            (method, method)
        }
        _ => ("_OTHER", "HTTP"),
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What steps took, in milliseconds.
fn times(phases: Phases) -> [KeyValue; 4] {
    [
        ("sluice.time.forward_ms", phases.forward),
        ("sluice.time.plan_ms", phases.plan),
        ("sluice.time.chain_ms", phases.chain),
        ("sluice.time.sample_ms", phases.sample),
    ]
    .map(|(name, time)| KeyValue::new(name, milliseconds(time)))
}

/// Names of HTTP and of generative AI are OpenTelemetry's.
fn set_facts(span: &mut Span, facts: &RequestFacts, clock: Clock) {
    let (method, _) = names_of(&facts.method);
    span.set_attributes([
        KeyValue::new("http.request.method", method.to_owned()),
        KeyValue::new("http.route", facts.route.clone()),
        KeyValue::new("url.path", facts.path.clone()),
        KeyValue::new("http.response.status_code", i64::from(facts.status)),
        KeyValue::new("sluice.request.id", facts.id.clone()),
    ]);
    if let Some(caller) = &facts.caller {
        span.set_attribute(KeyValue::new("sluice.caller", caller.clone()));
    }
    if let Some(generation) = &facts.generation {
        set_generation(span, generation, clock);
    }
    let failed = facts.generation.as_ref().and_then(Generation::error);
    let failed = failed.map(str::to_owned);
    let refused = (facts.status >= 500).then(|| facts.status.to_string());
    if let Some(error) = failed.or(refused) {
        span.set_attribute(KeyValue::new("error.type", error.clone()));
        span.set_status(Status::error(error));
    }
}

fn set_generation(span: &mut Span, generation: &Generation, clock: Clock) {
    let list = |texts: &mut dyn Iterator<Item = &str>| {
        let texts = texts.map(|text| StringValue::from(text.to_owned()));
        Value::Array(Array::String(texts.collect()))
    };
    let stages = list(&mut generation.stages.iter().map(String::as_str));
    let reasons = list(&mut generation.reasons.iter().copied());
    let n = |count: usize| count as i64;
    span.set_attributes([
        KeyValue::new("gen_ai.operation.name", generation.operation),
        KeyValue::new("gen_ai.response.model", generation.model.clone()),
        KeyValue::new("gen_ai.request.choice.count", n(generation.n_choices)),
        KeyValue::new("gen_ai.usage.input_tokens", n(generation.prompt_tokens)),
        KeyValue::new(
            "gen_ai.usage.output_tokens",
            n(generation.completion_tokens),
        ),
        KeyValue::new("gen_ai.response.finish_reasons", reasons),
        KeyValue::new("sluice.stream", generation.stream),
        KeyValue::new("sluice.cached_tokens", n(generation.cached_tokens)),
        KeyValue::new("sluice.stages", stages),
    ]);
    if let Some((at, after)) = generation.first_token {
        span.add_event_with_timestamp("first token", clock.at(at), Vec::new());
        let after = milliseconds(after);
        span.set_attribute(KeyValue::new("sluice.time.first_token_ms", after));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_clients_invent_have_one_name() {
        assert_eq!(names_of("POST"), ("POST", "POST"));
        for method in ["post", "BREW", ""] {
            assert_eq!(names_of(method), ("_OTHER", "HTTP"), "{method}");
        }
    }

    #[test]
    fn times_of_day_are_as_far_apart_as_their_instants() {
        let clock = Clock::start();
        let (later, between) = (Instant::now(), Duration::from_nanos(1_500));
        let expected = clock.at(later) + between;
        assert_eq!(clock.at(later + between), expected);
        assert_eq!(clock.at(clock.read), clock.time);
    }
}
