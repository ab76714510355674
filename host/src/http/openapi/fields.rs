//! The fields of a generation request, from the table of fields.

use serde_json::{Map, Value, json};

use super::super::field_table::{self, Endpoint, Field, Meaning};
use super::reference;
use crate::plugin::Registry;

/// Fields whose values some dialect takes beyond what the stage's schema says.
const WIDER: [&str; 6] = [
    "top_p",
    "repetition_penalty",
    "repetition_context_size",
    "presence_context_size",
    "frequency_context_size",
    "min_keep",
];

/// The body of a generation request. Unknown fields are refused.
pub(super) fn request(endpoint: Endpoint, registry: &Registry) -> Value {
    let properties: Map<_, _> = field_table::fields_of(endpoint)
        .map(|field| (field.name.to_owned(), described(field, endpoint, registry)))
        .collect();
    let required = match endpoint {
        Endpoint::Chat => "messages",
        Endpoint::Completions => "prompt",
    };
    json!({
        "type": "object",
        "properties": properties,
        "required": [required],
        "additionalProperties": false,
    })
}

fn described(field: &Field, endpoint: Endpoint, registry: &Registry) -> Value {
    match field.meaning {
        Meaning::Read if ["messages", "prompt"].contains(&field.name) => read(field.name, endpoint),
        Meaning::Read => or_null(read(field.name, endpoint)),
        Meaning::Stage(stage) => {
            let own = || {
                let plugin = registry.get(stage.plugin())?;
                parameter(&plugin.params_schema, field.name)
            };
            let schema = if WIDER.contains(&field.name) {
                json!({"type": "number"})
            } else {
                own().unwrap_or_else(|| json!({}))
            };
            let note = format!("A parameter of the stage `{}`.", stage.plugin());
            noted(or_null(schema), note)
        }
        Meaning::Alias(name) => {
            let schema = match field_table::find(name, endpoint) {
                Some(target) => described(target, endpoint, registry),
                None => json!({}),
            };
            let schema = match field.name {
                // −1 is llama.cpp's "without a limit".
                "n_predict" => json!({"anyOf": [{"const": -1}, schema]}),
                _ => schema,
            };
            noted(schema, format!("Another name of `{name}`."))
        }
        Meaning::Only(texts) => {
            let values = texts
                .iter()
                .filter_map(|text| serde_json::from_str(text).ok());
            let values: Vec<Value> = values.chain([Value::Null]).collect();
            noted(
                json!({"enum": values}),
                "Honoured at the values that change nothing.".into(),
            )
        }
        Meaning::Ignored => noted(
            json!({}),
            "Cannot change a token; named in `x-sluice-ignored`.".into(),
        ),
    }
}

/// The schema of a parameter, where it needs nothing else of the document that
/// it comes from.
fn parameter(params: &Value, name: &str) -> Option<Value> {
    let schema = params.get("properties")?.get(name)?;
    (!schema.to_string().contains("\"$ref\"")).then(|| schema.clone())
}

fn or_null(schema: Value) -> Value {
    match schema.as_object() {
        Some(object) if object.is_empty() => schema,
        _ => json!({"anyOf": [schema, {"type": "null"}]}),
    }
}

fn noted(mut schema: Value, note: String) -> Value {
    schema["description"] = note.into();
    schema
}

/// A field that the server reads by name. One that is not listed may be
/// anything; a test has none of these.
fn read(name: &str, endpoint: Endpoint) -> Value {
    let ids = json!({"type": "array", "items": {"type": "integer", "minimum": 0}});
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let flag = json!({"type": "boolean"});
    let top = json!({"type": "integer", "minimum": 0, "maximum": 20});
    match name {
        "messages" => json!({"type": "array", "minItems": 1, "items": message()}),
        "prompt" => json!({"anyOf": [text, ids, texts, {"type": "array", "items": ids}]}),
        "chat_template_kwargs" | "structured_outputs" => json!({"type": "object"}),
        "model" | "guided_regex" | "guided_grammar" => text,
        // An echo alone is an answer.
        "max_tokens" if endpoint == Endpoint::Completions => {
            json!({"type": "integer", "minimum": 0})
        }
        "max_tokens" | "n" | "best_of" => json!({"type": "integer", "minimum": 1}),
        "stop" => json!({"anyOf": [text, texts]}),
        "stop_token_ids" => ids,
        "seed" => json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
        "stream" | "explain" | "parallel_tool_calls" => flag,
        "echo" => match endpoint {
            Endpoint::Chat => json!({"const": false}),
            Endpoint::Completions => flag,
        },
        "stream_options" => json!({
            "type": "object",
            "properties": {
                "include_usage": {"type": ["boolean", "null"]},
                "include_obfuscation": {"enum": [false, null]},
            },
            "additionalProperties": false,
            "description": "Only beside `stream: true`.",
        }),
        "processors" | "chain" => json!({
            "type": "array", "maxItems": 32, "items": reference("Stage"),
        }),
        "dialect" => json!({"enum": super::super::dialect::names()}),
        "logprobs" => match endpoint {
            Endpoint::Chat => flag,
            Endpoint::Completions => top,
        },
        "top_logprobs" | "n_probs" => top,
        "logprobs_mode" => json!({"enum": ["raw", "processed"]}),
        "response_format" => json!({
            "type": "object",
            "properties": {"type": {"enum": [
                "text", "json_object", "json_schema", "regex", "choice", "lark",
            ]}},
            "required": ["type"],
        }),
        "guided_json" => json!({"type": ["object", "boolean", "string"]}),
        "guided_choice" => json!({"type": "array"}),
        "tools" => json!({"type": "array", "items": tool()}),
        "tool_choice" => json!({"anyOf": [
            {"enum": ["none", "auto", "required"]},
            {
                "type": "object",
                "properties": {"type": {"const": "function"}, "function": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                }},
                "required": ["type", "function"],
            },
        ]}),
        _ => json!({}),
    }
}

fn message() -> Value {
    json!({
        "type": "object",
        "description": "Further members reach the model's chat template as they are.",
        "properties": {
            "role": {"enum": super::super::chat::ROLES},
            "content": {"anyOf": [
                {"type": "string"},
                {"type": "array", "items": {
                    "type": "object",
                    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    "required": ["type", "text"],
                }},
                {"type": "null", "description": "Beside `tool_calls` only."},
            ]},
        },
        "required": ["role"],
    })
}

fn tool() -> Value {
    json!({
        "type": "object",
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "description": {"type": ["string", "null"]},
                    "parameters": {"type": ["object", "null"]},
                    "strict": {"type": ["boolean", "null"]},
                },
                "required": ["name"],
            },
        },
        "required": ["type", "function"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_is_read_by_name_is_described() {
        for endpoint in [Endpoint::Chat, Endpoint::Completions] {
            for field in field_table::fields_of(endpoint) {
                if field.meaning == Meaning::Read {
                    assert_ne!(read(field.name, endpoint), json!({}), "{}", field.name);
                }
            }
        }
    }
}
