//! The shapes of answers.
#![allow(
    clippy::needless_pass_by_value,
    reason = "each value is made where it is passed"
)]

use serde_json::{Map, Value, json};

use super::reference;

/// An object with exactly these members.
pub(super) fn object(members: Value) -> Value {
    object_with(members, &[])
}

/// An object with exactly these members, of which some may be left out.
fn object_with(members: Value, optional: &[&str]) -> Value {
    let names = members.as_object().into_iter().flat_map(Map::keys);
    let required: Vec<_> = names
        .filter(|name| !optional.contains(&name.as_str()))
        .cloned()
        .collect();
    json!({
        "type": "object",
        "properties": members,
        "required": required,
        "additionalProperties": false,
    })
}

fn list_of(items: &str) -> Value {
    object(
        json!({"object": {"const": "list"}, "data": {"type": "array", "items": reference(items)}}),
    )
}

fn array(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// Every schema of an answer but for errors.
pub(super) fn schemas() -> Map<String, Value> {
    let all = generated()
        .into_iter()
        .chain(logprobs())
        .chain(about_plugins())
        .chain(about_the_server());
    all.map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}

/// What all bodies and chunks have in common.
fn envelope(kind: &str, choice: Value, more: &Value, optional: &[&str]) -> Value {
    let mut members = json!({
        "id": {"type": "string"},
        "object": {"const": kind},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": array(choice),
    });
    if let (Some(members), Some(more)) = (members.as_object_mut(), more.as_object()) {
        members.extend(more.clone());
    }
    object_with(members, optional)
}

fn choice(members: &Value, logprobs: &str, finish: Value) -> Value {
    let mut all = json!({
        "index": {"type": "integer"},
        "logprobs": {"anyOf": [reference(logprobs), {"type": "null"}]},
        "finish_reason": finish,
        "stop_reason": {"type": "string", "description": "The stop string that was found."},
    });
    if let (Some(all), Some(members)) = (all.as_object_mut(), members.as_object()) {
        all.extend(members.clone());
    }
    object_with(all, &["stop_reason"])
}

fn generated() -> Vec<(&'static str, Value)> {
    let ended = json!({"enum": ["stop", "length", "tool_calls"]});
    let may_go_on = json!({"enum": ["stop", "length", "tool_calls", null]});
    let whole = json!({"usage": reference("Usage"), "sluice": reference("Done")});
    let part = json!({
        "usage": {"anyOf": [reference("Usage"), {"type": "null"}]},
        "sluice": reference("Done"),
    });
    let may_lack = ["usage", "sluice"];
    let text = json!({"text": {"type": "string"}});
    let message = json!({"message": object_with(json!({
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "refusal": {"type": "null"},
        "tool_calls": array(reference("ToolCall")),
    }), &["tool_calls"])});
    let delta = json!({"delta": object_with(json!({
        "role": {"const": "assistant"},
        "content": {"type": "string"},
        "tool_calls": array(reference("ToolCallDelta")),
    }), &["role", "content", "tool_calls"])});
    let (texts, chats) = ("CompletionLogprobs", "ChatLogprobs");
    vec![
        (
            "Completion",
            envelope(
                "text_completion",
                choice(&text, texts, ended.clone()),
                &whole,
                &[],
            ),
        ),
        (
            "CompletionChunk",
            envelope(
                "text_completion",
                choice(&text, texts, may_go_on.clone()),
                &part,
                &may_lack,
            ),
        ),
        (
            "ChatCompletion",
            envelope(
                "chat.completion",
                choice(&message, chats, ended),
                &whole,
                &[],
            ),
        ),
        (
            "ChatCompletionChunk",
            envelope(
                "chat.completion.chunk",
                choice(&delta, chats, may_go_on),
                &part,
                &may_lack,
            ),
        ),
        ("ToolCall", tool_call(false)),
        ("ToolCallDelta", tool_call(true)),
        ("Usage", usage()),
        (
            "Done",
            object(json!({"choices": array(object_with(json!({
            "index": {"type": "integer"},
            "stages": {"type": "array", "items": {"type": "object"}},
            "explain": {"type": "array", "items": {"type": "object"}},
        }), &["stages", "explain"]))})),
        ),
    ]
}

/// A call, which says in a chunk the how manieth it is.
fn tool_call(in_chunk: bool) -> Value {
    let mut members = json!({
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": object(json!({"name": {"type": "string"}, "arguments": {"type": "string"}})),
    });
    if in_chunk {
        members["index"] = json!({"type": "integer"});
    }
    object(members)
}

fn usage() -> Value {
    let count = json!({"type": "integer", "minimum": 0});
    object(json!({
        "prompt_tokens": count,
        "completion_tokens": count,
        "total_tokens": count,
        "prompt_tokens_details": object(json!({"cached_tokens": count})),
        "completion_tokens_details": object(json!({
            "accepted_prediction_tokens": count,
            "rejected_prediction_tokens": count,
        })),
    }))
}

fn logprobs() -> Vec<(&'static str, Value)> {
    let token = json!({
        "token": {"type": "string"},
        "logprob": {"type": "number"},
        "bytes": array(json!({"type": "integer", "minimum": 0, "maximum": 255})),
    });
    let mut entry = token.clone();
    entry["top_logprobs"] = array(object(token));
    let number = json!({"type": ["number", "null"]});
    let numbers = json!({"type": ["object", "null"], "additionalProperties": {"type": "number"}});
    vec![
        (
            "ChatLogprobs",
            object(json!({"content": array(object(entry)), "refusal": {"type": "null"}})),
        ),
        (
            "CompletionLogprobs",
            object(json!({
                "tokens": array(json!({"type": "string"})),
                "token_logprobs": array(number),
                "top_logprobs": {"anyOf": [array(numbers), {"type": "null"}]},
                "text_offset": array(json!({"type": "integer"})),
            })),
        ),
    ]
}

fn about_plugins() -> Vec<(&'static str, Value)> {
    let text = json!({"type": "string"});
    let count = json!({"type": "integer", "minimum": 0});
    let message = object(json!({"time": count, "level": text, "message": text}));
    let plugin = json!({
        "object": {"const": "plugin"},
        "name": text,
        "version": text,
        "digest": text,
        "kind": {"enum": ["token-processor", "logits-processor", "sampler"]},
        "summary": text,
        "builtin": {"type": "boolean"},
        "created": count,
        "uploaded_by": {"type": ["string", "null"]},
        "size_bytes": count,
        "faults": count,
        "disabled": {"type": ["string", "null"]},
        "params_schema": {"type": ["object", "boolean"]},
        "log": array(message),
    });
    let removed = json!({
        "object": {"const": "list"},
        "deleted": {"const": true},
        "data": array(reference("Plugin")),
    });
    vec![
        ("Plugin", object_with(plugin, &["log"])),
        ("PluginList", list_of("Plugin")),
        ("RemovedPlugins", object(removed)),
    ]
}

fn about_the_server() -> Vec<(&'static str, Value)> {
    let text = json!({"type": "string"});
    let count = json!({"type": "integer", "minimum": 0});
    let model = json!({
        "id": text,
        "object": {"const": "model"},
        "created": count,
        "owned_by": text,
        "context_length": count,
        "vocabulary_size": count,
    });
    let stage = object(json!({"plugin": text, "params": {"type": "object"}}));
    let dialect = json!({"name": text, "summary": text, "chain": array(stage), "values": text});
    let status = json!({"status": {"enum": ["ok", "ready"]}, "running": count, "waiting": count});
    vec![
        ("Model", object(model)),
        ("ModelList", list_of("Model")),
        ("Dialect", object(dialect)),
        ("DialectList", list_of("Dialect")),
        ("Status", object(status)),
    ]
}
