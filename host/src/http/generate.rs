//! `POST /v1/completions` and `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::access::Caller;
use super::choice::{Answers, Choice};
use super::errors::ApiError;
use super::field_table::Endpoint;
use super::lifecycle::held;
use super::log::Notes;
use super::request::{self, Prepared};
use super::turns::{LEAST_WAITING, READING};
use super::wire::{Ended, Reply, Usage};
use super::{Service, blocking, read_body, sse};
use crate::telemetry::Generation;

pub(super) async fn completions(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    generate(service, Endpoint::Completions, caller, request).await
}

pub(super) async fn chat_completions(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    generate(service, Endpoint::Chat, caller, request).await
}

async fn generate(
    service: Arc<Service>,
    endpoint: Endpoint,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let notes = request.extensions().get::<Notes>().cloned();
    let place = service.concurrency.enter(&caller)?;
    let body = read_body(request, service.limits.request_bytes).await?;
    let deadline = service.limits.deadline();
    let max_waiting = service.engine.max_waiting().max(LEAST_WAITING);
    let turn = READING.take(max_waiting, deadline).await?;
    // The place goes along: a client that leaves does not end what has begun.
    let (understood, place) = {
        let service = service.clone();
        blocking(move || {
            let _turn = turn;
            Ok((request::read(&service, endpoint, &body)?, place))
        })
        .await?
    };
    // Without the turn: opening waits for room, and others need not wait for that.
    let (prepared, place) = {
        let service = service.clone();
        blocking(move || Ok((understood.open(&service, deadline)?, place))).await?
    };
    let Prepared {
        sequences,
        prompt_tokens,
        seed,
        stream,
        logprobs,
        ignored,
    } = prepared;
    let reply = Reply::new(endpoint, &service.model, logprobs);
    let metrics = service.metrics.clone();
    if let Some(notes) = &notes {
        let choices = sequences.iter().map(|(_, choice)| choice);
        notes.begin(Generation {
            operation: match endpoint {
                Endpoint::Chat => "chat",
                Endpoint::Completions => "text_completion",
            },
            model: service.model.id.clone(),
            stream: stream.is_some(),
            n_choices: choices.len(),
            prompt_tokens,
            stages: choices.clone().next().map_or_else(Vec::new, Choice::stages),
            ..Generation::default()
        });
    }
    let answers = Answers::submit(&service.engine, sequences, deadline, metrics, notes)?;
    service.metrics.prompted(prompt_tokens);
    let mut response = match stream {
        Some(options) => {
            let end = service.lifecycle.watch();
            sse::respond(answers, end, reply, options, prompt_tokens)
        }
        None => respond(answers, &reply, prompt_tokens).await?,
    };
    describe(response.headers_mut(), seed, &ignored);
    Ok(held(response, place))
}

/// Waits for every choice to end. When the client goes away this future is
/// dropped, and the sequences with it.
async fn respond(
    mut answers: Answers,
    reply: &Reply,
    prompt_tokens: usize,
) -> Result<Response, ApiError> {
    let mut choices: Vec<_> = (0..answers.len()).map(|_| Ended::default()).collect();
    let mut usage = Usage::of_prompt(prompt_tokens);
    while let Some((index, update)) = answers.next().await? {
        let choice = &mut choices[index];
        choice.text.push_str(&update.text);
        choice.calls.extend(update.calls);
        choice.entries.extend(update.entries);
        choice.explained.extend(update.explained);
        if let Some(finish) = update.end {
            usage.count(&finish);
            choice.finish = Some(finish);
        }
    }
    Ok(Json(reply.body(&choices, usage)).into_response())
}

/// Names the seed, which a header carries exactly where a JSON number might
/// not, and the fields that were ignored.
fn describe(headers: &mut HeaderMap, seed: i64, ignored: &[&str]) {
    headers.insert("x-sluice-seed", HeaderValue::from(seed));
    if ignored.is_empty() {
        return;
    }
    if let Ok(names) = HeaderValue::from_str(&ignored.join(", ")) {
        headers.insert("x-sluice-ignored", names);
    }
}
