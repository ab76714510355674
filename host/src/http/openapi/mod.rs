//! `GET /openapi.json`: what the server answers, from the tables it answers by.
//!
//! Fields come from the field table, errors from the error table, parameters of
//! stages from the plugins that are registered now. What is written by hand,
//! the shapes of answers, is held against real answers by a test.

mod answers;
mod fields;
mod operations;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use super::Service;
use super::errors::Code;
use super::field_table::Endpoint;
use crate::plugin::{Kind, Plugin, Registry};
use operations::{Answer, Body, OPERATIONS, Operation};

pub(super) async fn show(State(service): State<Arc<Service>>) -> Json<Value> {
    Json(document(&service))
}

/// The document, in OpenAPI 3.1.
fn document(service: &Service) -> Value {
    let registry = &*service.registry;
    let secured = service.access.has_tokens();
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described(operation, secured);
    }
    let mut schemas = answers::schemas();
    schemas.insert("Error".into(), error_schema());
    for (name, endpoint) in [
        ("CompletionRequest", Endpoint::Completions),
        ("ChatCompletionRequest", Endpoint::Chat),
    ] {
        let mut request = fields::request(endpoint, registry);
        let names = service.model.names().map(Value::from);
        let names: Vec<_> = names.chain([Value::Null]).collect();
        request["properties"]["model"] = json!({"enum": names});
        schemas.insert(name.into(), request);
    }
    let plugins = registry.list();
    schemas.insert("Stage".into(), stage_schema(registry, &plugins));
    for plugin in &plugins {
        schemas.insert(component_name(plugin), params_schema(plugin));
    }
    json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "Sluice",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Text generation whose every token is chosen by WebAssembly components.",
            "description": "Any field that is null is as absent. Every answer has the header \
                            `x-request-id`: that of the request if it is one, else a new one. \
                            What is no HTTP request, or has too long a head, gets a 400, 414 or \
                            431 without a body, and the connection ends.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// An operation as the document has it.
fn described(operation: &Operation, secured: bool) -> Value {
    let mut responses = Map::new();
    for (status, answer) in operation.answers {
        responses.insert(status.to_string(), answered(answer));
    }
    for (status, codes) in by_status(operation.codes()) {
        responses.insert(status.to_string(), failed(&codes));
    }
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses,
    });
    let parameters: Vec<_> = operation
        .parameters()
        .map(|name| {
            json!({
                "name": name, "in": "path", "required": true, "schema": {"type": "string"},
            })
        })
        .collect();
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    match operation.body {
        Body::None => {}
        Body::Json(schema) => {
            described["requestBody"] = json!({
                "required": true,
                "content": {"application/json": {"schema": reference(schema)}},
            });
        }
        Body::Component => {
            described["requestBody"] = json!({
                "required": true,
                "description": "A component, or a core module that carries its component type.",
                "content": {"application/wasm": {}},
            });
        }
    }
    if secured && operation.needs_token {
        described["security"] = json!([{"token": []}]);
    }
    described
}

fn answered(answer: &Answer) -> Value {
    match answer {
        Answer::Json(schema) => json!({
            "description": "The answer.",
            "content": {"application/json": {"schema": reference(schema)}},
        }),
        Answer::Generated { whole, chunk } => json!({
            "description": "The answer. With `stream: true` it comes as server-sent events: each \
                            has a chunk as its data, or an error, which ends the stream; the last \
                            is `[DONE]`.",
            "headers": {
                "x-sluice-seed": {
                    "description": "The seed that gives the same tokens again.",
                    "schema": {"type": "string"},
                },
                "x-sluice-ignored": {
                    "description": "Fields that cannot change a token.",
                    "schema": {"type": "string"},
                },
            },
            "content": {
                "application/json": {"schema": reference(whole)},
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "x-chunk": reference(chunk),
                },
            },
        }),
        Answer::Text(kind) => json!({
            "description": "The answer.",
            "content": {(*kind): {"schema": {"type": "string"}}},
        }),
        Answer::Document => json!({
            "description": "This document.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }),
    }
}

fn by_status(codes: impl Iterator<Item = Code>) -> BTreeMap<u16, Vec<Code>> {
    let mut by_status = BTreeMap::<_, Vec<_>>::new();
    for code in codes {
        by_status.entry(code.status()).or_default().push(code);
    }
    by_status
}

fn failed(codes: &[Code]) -> Value {
    let lines = codes
        .iter()
        .map(|code| format!("- `{}`: {}", code.name(), code.summary()));
    let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
    let mut failed = json!({
        "description": lines.collect::<Vec<_>>().join("\n"),
        "content": {"application/json": {"schema": {"allOf": [
            reference("Error"),
            {"properties": {"error": {"properties": {"code": {"enum": names}}}}},
        ]}}},
    });
    if codes.iter().any(|code| matches!(code.status(), 429 | 503)) {
        failed["headers"] = json!({"retry-after": {
            "description": "Seconds after which it is worth another try.",
            "schema": {"type": "integer"},
        }});
    }
    failed
}

fn error_schema() -> Value {
    let codes: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
    let mut kinds: Vec<_> = Code::ALL.iter().map(|code| code.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    answers::object(json!({"error": answers::object(json!({
        "message": {"type": "string"},
        "type": {"enum": kinds},
        "param": {
            "type": ["string", "null"],
            "description": "The field at fault, as the client wrote it.",
        },
        "code": {"enum": codes},
    }))}))
}

/// A stage of `processors` or `chain`: one of the plugins that are there now,
/// with its parameters.
fn stage_schema(registry: &Registry, plugins: &[Arc<Plugin>]) -> Value {
    let stages: Vec<_> = plugins
        .iter()
        .map(|plugin| {
            let mut names = vec![
                format!("{}@{}", plugin.name, plugin.version),
                plugin.digest.clone(),
            ];
            let newest = registry.get(&plugin.name);
            if newest.is_some_and(|newest| Arc::ptr_eq(&newest, plugin)) {
                names.push(plugin.name.clone());
            }
            let on_fault = match plugin.kind {
                Kind::TokenProcessor => json!(["fail", "skip", "wait", null]),
                Kind::LogitsProcessor | Kind::Sampler => json!(["fail", null]),
            };
            json!({
                "type": "object",
                "description": plugin.summary,
                "properties": {
                    "plugin": {"enum": names},
                    "params": {"anyOf": [reference(&component_name(plugin)), {"type": "null"}]},
                    "on_fault": {"enum": on_fault},
                },
                "required": ["plugin"],
                "additionalProperties": false,
            })
        })
        .collect();
    json!({
        "description": "A plugin by `name`, which means the newest version, `name@version` or \
                        `sha256:…`.",
        "anyOf": stages,
    })
}

/// A plugin's parameters, as its component describes them. With an `$id` of its
/// own, so that its references stay within it.
fn params_schema(plugin: &Plugin) -> Value {
    let mut schema = plugin.params_schema.clone();
    if let Some(schema) = schema.as_object_mut() {
        let id = format!("urn:sluice:{}", component_name(plugin));
        schema.entry("$id").or_insert(id.into());
    }
    schema
}

/// Its name among the document's schemas, which may have no other characters.
fn component_name(plugin: &Plugin) -> String {
    let name = format!("plugin.{}-{}", plugin.name, plugin.version);
    name.replace(
        |c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c),
        "_",
    )
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_error_is_one_of_some_operation() {
        let mut documented: BTreeSet<_> = OPERATIONS
            .iter()
            .flat_map(Operation::codes)
            .map(Code::name)
            .collect();
        // That is what no operation gives.
        documented.insert(Code::MethodNotAllowed.name());
        let all: BTreeSet<_> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(documented, all);
    }

    #[test]
    fn every_route_is_documented_and_every_documented_one_is_there() {
        let documented: BTreeSet<_> = OPERATIONS
            .iter()
            .map(|operation| operation.path.to_owned())
            .collect();
        let routes = super::super::routes();
        let routes = routes.iter().map(|(path, _)| path.replace("{*", "{"));
        assert_eq!(documented, routes.collect());
    }
}
