//! `GET /v1/models`, `GET /v1/models/{id}`, `GET /health`, `GET /ready` and
//! `GET /metrics`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::errors::{ApiError, Code, shown};
use super::{PathParam, Service, path_param};
use crate::telemetry;

pub(super) async fn list(State(service): State<Arc<Service>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [describe(&service)]}))
}

pub(super) async fn show(
    State(service): State<Arc<Service>>,
    path: PathParam,
) -> Result<Json<Value>, ApiError> {
    let id = path_param(path)?;
    if id == service.model.id {
        return Ok(Json(describe(&service)));
    }
    let message = format!("there is no model {}", shown(&Value::from(id)));
    Err(ApiError::of(Code::ModelNotFound, "model", message))
}

fn describe(service: &Service) -> Value {
    let info = service.engine.model_info();
    json!({
        "id": service.model.id,
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
