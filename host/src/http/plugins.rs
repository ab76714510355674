//! `/v1/plugins`: upload, look at and remove plugins while the server runs.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::access::Caller;
use super::errors::{ApiError, Code, shown};
use super::{PathParam, Service, blocking, path_param, read_body, unix_seconds};
use crate::plugin::{Plugin, RemoveError, UploadCode, UploadError, Uploaded};

/// Uploads that are there and compiled at once. Compiling is one after the other
/// anyway, and each holds a thread meanwhile.
static COMPILED: Semaphore = Semaphore::const_new(4);

/// `PUT`: the body is the component. 201 if it is new, 200 if these bytes were
/// there already.
pub(super) async fn upload(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    service.upload_rate.check(&caller)?;
    let place = service.upload_rate.place(&caller).await?;
    // Before the permit: a slow client holds up its own uploads alone.
    let bytes = read_body(request, service.limits.plugin_bytes).await?;
    let permit = COMPILED
        .acquire()
        .await
        .map_err(|error| ApiError::new(Code::InternalError, error.to_string()))?;
    let Uploaded { plugin, created } = blocking(move || {
        let _held = (permit, place);
        service
            .registry
            .upload_by(&bytes, caller.0.as_deref())
            .map_err(|error| upload_error(&error))
    })
    .await?;
    let status = if created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(describe(&plugin))))
}

pub(super) async fn list(State(service): State<Arc<Service>>) -> Json<Value> {
    let plugins: Vec<_> = service
        .registry
        .list()
        .iter()
        .map(|plugin| describe(plugin))
        .collect();
    Json(json!({"object": "list", "data": plugins}))
}

pub(super) async fn show(
    State(service): State<Arc<Service>>,
    path: PathParam,
) -> Result<Json<Value>, ApiError> {
    let plugin = find(&service, path)?;
    let mut shown = describe(&plugin);
    shown["log"] = messages(&plugin);
    Ok(Json(shown))
}

/// `DELETE`: hides what the reference names from new requests; running ones
/// keep it.
pub(super) async fn remove(
    State(service): State<Arc<Service>>,
    path: PathParam,
) -> Result<Json<Value>, ApiError> {
    let reference = path_param(path)?;
    let removed = blocking(move || {
        let removed = service.registry.remove(&reference);
        removed.map_err(|error| match error {
            RemoveError::NotFound { .. } => not_found(&reference),
            RemoveError::Store(_) => ApiError::new(Code::InternalError, error.to_string()),
            RemoveError::Builtin { .. } => ApiError::new(Code::PluginConflict, error.to_string()),
        })
    })
    .await?;
    let removed: Vec<_> = removed.iter().map(|plugin| describe(plugin)).collect();
    Ok(Json(
        json!({"object": "list", "deleted": true, "data": removed}),
    ))
}

/// `POST …/enable`: lets a plugin that failed too often be used again.
pub(super) async fn enable(
    State(service): State<Arc<Service>>,
    path: PathParam,
) -> Result<Json<Value>, ApiError> {
    let plugin = find(&service, path)?;
    plugin.enable();
    Ok(Json(describe(&plugin)))
}

/// The plugin that a path names.
fn find(service: &Service, path: PathParam) -> Result<Arc<Plugin>, ApiError> {
    let reference = path_param(path)?;
    let found = service.registry.get(&reference);
    found.ok_or_else(|| not_found(&reference))
}

/// A plugin's last messages, for its author.
fn messages(plugin: &Plugin) -> Value {
    let shown = plugin.messages().into_iter().map(|(time, line)| {
        json!({"time": unix_seconds(time), "level": line.level, "message": line.message})
    });
    shown.collect()
}

fn describe(plugin: &Plugin) -> Value {
    json!({
        "object": "plugin",
        "name": plugin.name,
        "version": plugin.version.to_string(),
        "digest": plugin.digest,
        "kind": plugin.kind.name(),
        "summary": plugin.summary,
        "builtin": plugin.builtin,
        "created": unix_seconds(plugin.uploaded_at),
        "uploaded_by": plugin.uploaded_by,
        "size_bytes": plugin.size_bytes,
        "faults": plugin.n_faults(),
        "disabled": plugin.disabled(),
        "params_schema": plugin.params_schema,
    })
}

fn not_found(reference: &str) -> ApiError {
    let message = format!("there is no plugin {}", shown(&Value::from(reference)));
    ApiError::of(Code::PluginNotFound, "plugin", message)
}

fn upload_error(error: &UploadError) -> ApiError {
    let code = match error.code {
        UploadCode::TooLarge => Code::BodyTooLarge,
        UploadCode::VersionConflict | UploadCode::RegistryFull => Code::PluginConflict,
        UploadCode::Internal => Code::InternalError,
        _ => Code::InvalidPlugin,
    };
    ApiError::new(code, error.to_string())
}
