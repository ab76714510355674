//! `GET /v1/models`, `GET /v1/models/{id}`, `GET /health`, `GET /ready` and
//! `GET /metrics`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::errors::ApiError;
use super::{PathParam, Service, path_param};
use crate::telemetry;

pub(super) async fn list(State(service): State<Arc<Service>>) -> Json<Value> {
    let models: Vec<Value> = service
        .model
        .names()
        .map(|name| describe(&service, name))
        .collect();
    Json(json!({"object": "list", "data": models}))
}

pub(super) async fn show(
    State(service): State<Arc<Service>>,
    path: PathParam,
) -> Result<Json<Value>, ApiError> {
    let id = path_param(path)?;
    let mut names = service.model.names();
    match names.find(|name| *name == id) {
        Some(name) => Ok(Json(describe(&service, name))),
        None => Err(service.model.unknown(&Value::from(id))),
    }
}

fn describe(service: &Service, name: &str) -> Value {
    let info = service.engine.model_info();
    json!({
        "id": name,
        "object": "model",
        "created": service.model.created,
        "owned_by": "sluice",
        "context_length": info.context_length,
        "vocabulary_size": info.vocabulary_size,
    })
}

/// Whether the process is worth keeping: its engine gets on.
pub(super) async fn health(State(service): State<Arc<Service>>) -> Result<Json<Value>, ApiError> {
    match service.failure() {
        Some(error) => Err(error),
        None => Ok(status(&service, "ok")),
    }
}

/// Whether requests are taken now.
pub(super) async fn ready(State(service): State<Arc<Service>>) -> Result<Json<Value>, ApiError> {
    service.lifecycle.check()?;
    match service.failure() {
        Some(error) => Err(error),
        None => Ok(status(&service, "ready")),
    }
}

fn status(service: &Service, status: &str) -> Json<Value> {
    let stats = service.engine.stats();
    Json(json!({"status": status, "running": stats.running, "waiting": stats.waiting}))
}

pub(super) async fn metrics(State(service): State<Arc<Service>>) -> Response {
    let body = service.metrics.exposition();
    ([(header::CONTENT_TYPE, telemetry::MEDIA_TYPE)], body).into_response()
}
