//! `GET /v1/models`, `GET /v1/models/{id}`, `GET /health` and `GET /metrics`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::errors::{ApiError, Code};
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

pub(super) async fn health(State(service): State<Arc<Service>>) -> Result<Json<Value>, ApiError> {
    if !service.engine.is_alive() {
        return Err(ApiError::new(Code::Stopped, "the engine has stopped"));
    }
    let stats = service.engine.stats();
    Ok(Json(
        json!({"status": "ok", "running": stats.running, "waiting": stats.waiting}),
    ))
}

pub(super) async fn metrics(State(service): State<Arc<Service>>) -> Response {
    const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    let body = telemetry::exposition(&service.engine.stats());
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], body).into_response()
}
