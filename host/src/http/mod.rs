//! Routes, wire types and errors; no logic of generation.
//!
//! A generation request passes through the files in this order: [`body`] makes
//! one JSON object of the bytes, [`fields`] sorts its fields by [`field_table`],
//! [`request`] turns them into sequences that are ready to run, with the prompt
//! from [`chat`] or [`completions`] and the stages from [`stages`], which
//! [`dialect`], [`constraint`] and [`default_chain`] shape;
//! [`generate`] hands them to the engine, [`choice`] turns its events into
//! text, and [`wire`] and [`sse`] into an answer. [`errors`] lists every error
//! there is, [`access`] who may ask, [`hosts`] from which pages, [`turns`] how many
//! are read at once.

mod access;
mod body;
mod chat;
mod choice;
mod completions;
mod connections;
mod constraint;
mod default_chain;
mod dialect;
pub mod errors;
mod field_table;
mod fields;
mod forced_call;
mod generate;
mod hosts;
mod lifecycle;
mod log;
mod logprobs;
mod models;
mod openapi;
mod plugins;
mod rate;
mod request;
mod served_model;
mod sse;
mod stages;
mod tools;
mod turns;
mod web;
mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use uuid::Uuid;

use crate::engine::Handle;
use crate::plugin::{Registry, Runtime};
use crate::telemetry::Metrics;
use choice::RequestDeadline;
use errors::{ApiError, Code};

pub use access::{Access, Caller, Scope, TokensError};
pub use connections::{Connections, HEAD_TIMEOUT};
pub use hosts::Host;
pub use lifecycle::Lifecycle;
pub use log::AccessLog;
pub use rate::{Concurrency, UploadRate};
pub use served_model::ServedModel;
pub use web::{Origin, Web};

/// The longest a body may take to arrive; a client that stalls longer is told
/// so instead of holding its buffer for ever.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);

/// Names a request in its answer and in logs.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Everything that answering a request needs.
pub struct Service {
    pub model: ServedModel,
    pub engine: Handle,
    pub runtime: Arc<Runtime>,
    pub registry: Arc<Registry>,
    pub limits: RequestLimits,
    pub access: Access,
    pub upload_rate: UploadRate,
    pub concurrency: Concurrency,
    pub lifecycle: Lifecycle,
    pub web: Web,
    pub metrics: Arc<Metrics>,
}

impl Service {
    /// Why nothing can be generated any more, if that is so.
    pub fn failure(&self) -> Option<ApiError> {
        let stalled = self.engine.stalled();
        if !self.engine.is_alive() {
            Some(ApiError::new(Code::Stopped, "the engine has stopped"))
        } else if stalled > self.limits.step {
            let message = format!("the engine has been at one step for {stalled:.1?}");
            Some(ApiError::new(Code::Stopped, message))
        } else {
            None
        }
    }
}

/// The most that one request, or one caller, may ask for.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Longest body of a generation request, in bytes.
    pub request_bytes: usize,
    /// Longest plugin, in bytes.
    pub plugin_bytes: usize,
    /// Most choices, over all prompts; the default is OpenAI's limit for `n`.
    /// More than the engine's queue holds would be refused as overload for
    /// ever.
    pub choices: usize,
    /// Most values of logprobs and explanations in an answer that is not streamed,
    /// if every choice takes all its tokens. Default 4 Mi, some 300 MB of JSON.
    pub answer_values: usize,
    /// How long a request may take, waiting included, from its last byte on.
    /// Default 10 minutes: `OpenAI`'s clients wait no longer.
    pub time: Duration,
    /// Most uploads of one caller in a minute; 0: no limit. Default 60: each
    /// takes the compiler's time.
    pub uploads_per_minute: u32,
    /// Most generation requests of one caller under way at once; 0, the
    /// default: no limit.
    pub per_caller: u32,
    /// How long a step may take before the engine counts as stuck. Default 5
    /// minutes: a chunk of a prompt may take one.
    pub step: Duration,
}

impl RequestLimits {
    /// When a request that has arrived now must be answered.
    fn deadline(&self) -> RequestDeadline {
        RequestDeadline {
            end: Instant::now() + self.time,
            limit: self.time,
        }
    }
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            request_bytes: 8 << 20,
            plugin_bytes: 64 << 20,
            choices: 128,
            answer_values: 4 << 20,
            time: Duration::from_mins(10),
            uploads_per_minute: 60,
            per_caller: 0,
            step: Duration::from_mins(5),
        }
    }
}

/// Every path, with the methods that it answers.
fn routes() -> [(&'static str, MethodRouter<Arc<Service>>); 12] {
    [
        ("/v1/completions", post(generate::completions)),
        ("/v1/chat/completions", post(generate::chat_completions)),
        ("/v1/models", get(models::list)),
        ("/v1/models/{*id}", get(models::show)),
        ("/v1/dialects", get(dialect::list)),
        ("/v1/plugins", get(plugins::list).put(plugins::upload)),
        (
            "/v1/plugins/{reference}",
            get(plugins::show).delete(plugins::remove),
        ),
        ("/v1/plugins/{reference}/enable", post(plugins::enable)),
        ("/health", get(models::health)),
        ("/ready", get(models::ready)),
        ("/metrics", get(models::metrics)),
        ("/openapi.json", get(openapi::show)),
    ]
}

/// All of it.
pub fn router(service: &Arc<Service>) -> Router {
    let routes = routes()
        .into_iter()
        .fold(Router::new(), |router, (path, methods)| {
            router.route(path, methods)
        })
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(service.clone(), authorize))
        .layer(middleware::from_fn_with_state(
            service.clone(),
            lifecycle::admit,
        ));
    service
        .web
        .around(routes)
        .layer(middleware::from_fn(survive))
        .layer(middleware::from_fn_with_state(
            service.clone(),
            log::observe,
        ))
        .layer(middleware::from_fn(mark))
        .with_state(service.clone())
}

async fn no_route(request: Request) -> ApiError {
    let path = errors::shown(&request.uri().path().into());
    ApiError::new(Code::NotFound, format!("there is no route {path}"))
}

async fn no_method(request: Request) -> ApiError {
    let path = errors::shown(&request.uri().path().into());
    let message = format!("{path} does not answer {}", request.method());
    ApiError::new(Code::MethodNotAllowed, message)
}

/// Lets pass who may, and says who it is.
async fn authorize(
    State(service): State<Arc<Service>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (path, headers) = (request.uri().path(), request.headers());
    if service.access.is_open(request.method(), path) {
        let Web { hosts, origins, .. } = &service.web;
        hosts::check(request.uri(), headers, hosts, origins)?;
    }
    let caller = service.access.check(request.method(), path, headers)?;
    request.extensions_mut().insert(caller.clone());
    let mut response = next.run(request).await;
    response.extensions_mut().insert(caller);
    Ok(response)
}

/// Gives each response its `x-request-id`, that of the request where it has one
/// that can be passed on.
async fn mark(mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers()).unwrap_or_else(new_request_id);
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Gives a panic its answer: a 500 for that request and nobody else.
async fn survive(request: Request, next: Next) -> Response {
    let mut answer = std::pin::pin!(next.run(request));
    std::future::poll_fn(|context| {
        let poll = catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context)));
        poll.unwrap_or_else(|_| std::task::Poll::Ready(panicked().into_response()))
    })
    .await
}

/// The client's name for its request, unless it is too long or could be taken
/// for something else in a log.
fn request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    const MOST: usize = 128;
    let id = headers.get(REQUEST_ID)?;
    let text = id.to_str().ok()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/+=".contains(c);
    (!text.is_empty() && text.len() <= MOST && text.chars().all(plain)).then(|| id.clone())
}

fn new_request_id() -> HeaderValue {
    let id = format!("req-{}", Uuid::new_v4().simple());
    // Cannot fail: it has letters and digits.
    HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("req-0"))
}

fn panicked() -> ApiError {
    ApiError::new(
        Code::InternalError,
        "the server failed on this request; its log says where",
    )
}

/// Runs work that blocks, with the stack that guest code needs.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(panicked()))
}

/// The whole body, of at most `limit` bytes.
async fn read_body(mut request: Request, limit: usize) -> Result<Bytes, ApiError> {
    DefaultBodyLimit::max(limit).apply(&mut request);
    let body = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, &()))
        .await
        .map_err(|_| {
            let seconds = BODY_TIMEOUT.as_secs();
            ApiError::new(
                Code::BodyTimeout,
                format!("the body took longer than {seconds} s"),
            )
        })?;
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
            Code::BodyTooLarge,
            format!("the body exceeds {limit} bytes"),
        ),
        _ => ApiError::new(Code::InvalidBody, rejection.body_text()),
    })
}

type PathParam = Result<Path<String>, PathRejection>;

fn path_param(path: PathParam) -> Result<String, ApiError> {
    path.map(|Path(value)| value)
        .map_err(|rejection| ApiError::new(Code::NotFound, rejection.body_text()))
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |age| age.as_secs())
}
