//! `messages` and `chat_template_kwargs`, the fields of its own of
//! `/v1/chat/completions`.

use serde_json::{Map, Value};

use super::completions::tokenizer_error;
use super::errors::{ApiError, Code};
use super::fields::{Fields, Given};
use super::tools::Tools;
use crate::engine::TokenId;
use crate::text::{ChatInput, ChatTemplate, TemplateError, Tokenizer};

pub(super) const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Reads the messages, renders them and tokenizes the result.
pub(super) fn read_prompt(
    fields: &mut Fields,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    tools: Option<&Tools>,
) -> Result<Vec<TokenId>, ApiError> {
    let messages = read_messages(&fields.required("messages")?)?;
    let extra = match fields.take("chat_template_kwargs") {
        None => None,
        Some(Given {
            value: Value::Object(object),
            ..
        }) => Some(object),
        Some(given) => return Err(given.invalid("an object")),
    };
    let template = template.ok_or_else(|| {
        let message = "this model has no chat template; use /v1/completions";
        ApiError::of(Code::TemplateError, "messages", message)
    })?;
    let input = ChatInput {
        messages: &messages,
        tools: tools.map(|tools| &tools.list),
        add_generation_prompt: true,
        extra: extra.as_ref(),
    };
    let mut text = template
        .render(&input)
        .map_err(|error| template_error(&error))?;
    text.push_str(tools.map_or("", Tools::opening));
    let prompt = tokenizer
        .encode(&text, true)
        .map_err(|error| tokenizer_error("messages", &error))?;
    if prompt.is_empty() {
        let message = "the chat template makes an empty prompt of these messages";
        return Err(ApiError::of(Code::TemplateError, "messages", message));
    }
    Ok(prompt)
}

fn template_error(error: &TemplateError) -> ApiError {
    let message = error.to_string();
    match error {
        TemplateError::Panicked(_) => ApiError::new(Code::InternalError, message),
        TemplateError::OwnName(name) => {
            let param = format!("chat_template_kwargs.{name}");
            ApiError::of(Code::InvalidValue, param, message)
        }
        _ => ApiError::of(Code::TemplateError, "messages", message),
    }
}

/// Checks roles and contents; every other key reaches the template as given.
fn read_messages(given: &Given) -> Result<Vec<Value>, ApiError> {
    let Some(messages) = given
        .value
        .as_array()
        .filter(|messages| !messages.is_empty())
    else {
        return Err(given.invalid("a list of at least one message"));
    };
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| read_message(&format!("messages[{index}]"), message))
        .collect()
}

fn read_message(path: &str, message: &Value) -> Result<Value, ApiError> {
    let mut message = message
        .as_object()
        .cloned()
        .ok_or_else(|| ApiError::invalid(path, message, "an object with `role` and `content`"))?;
    let role = read_role(path, &message)?;
    let content = match message.get("content") {
        // A message that only calls has nothing to say.
        None | Some(Value::Null) if calls(&message) => String::new(),
        _ => read_content(path, &message)?,
    };
    // Clients send answers back as they came. Templates ask whether the key is
    // there, and refuse what is not one call or more.
    message.retain(|key, value| {
        let of_calls = matches!(key.as_str(), "tool_calls" | "function_call");
        !of_calls || !(value.is_null() || value.as_array().is_some_and(Vec::is_empty))
    });
    read_calls(&mut message);
    message.insert("role".into(), role.into());
    message.insert("content".into(), content.into());
    Ok(Value::Object(message))
}

fn calls(message: &Map<String, Value>) -> bool {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    calls.is_some_and(|calls| !calls.is_empty())
}

/// Makes objects of the arguments of calls, which clients send as text:
/// templates expect them so.
fn read_calls(message: &mut Map<String, Value>) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        let object = match arguments.as_str() {
            Some("") => Some(Map::new()),
            Some(text) => serde_json::from_str(text).ok(),
            None => None,
        };
        if let Some(object) = object {
            *arguments = Value::Object(object);
        }
    }
}

fn read_role(path: &str, message: &Map<String, Value>) -> Result<&'static str, ApiError> {
    let path = format!("{path}.role");
    let role = message
        .get("role")
        .filter(|role| !role.is_null())
        .ok_or_else(|| required(&path))?;
    match ROLES.iter().find(|known| role == **known) {
        Some(&"developer") => Ok("system"),
        Some(known) => Ok(known),
        None => Err(ApiError::invalid(
            &path,
            role,
            format_args!("one of {}", ROLES.join(", ")),
        )),
    }
}

/// A string, or parts of type `text`, which are joined.
fn read_content(path: &str, message: &Map<String, Value>) -> Result<String, ApiError> {
    let path = format!("{path}.content");
    match message.get("content") {
        None | Some(Value::Null) => Err(required(&path)),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts
            .iter()
            .enumerate()
            .map(|(index, part)| {
                part["text"]
                    .as_str()
                    .filter(|_| part["type"] == "text")
                    .ok_or_else(|| {
                        let path = format!("{path}[{index}]");
                        ApiError::invalid(&path, part, "a part of type text with a `text` string")
                    })
            })
            .collect(),
        Some(other) => Err(ApiError::invalid(
            &path,
            other,
            "a string or a list of text parts",
        )),
    }
}

fn required(path: &str) -> ApiError {
    ApiError::of(Code::MissingField, path, format!("`{path}` is required"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(messages: Value) -> Result<Vec<Value>, ApiError> {
        read_messages(&Given {
            name: "messages",
            sent_as: "messages",
            value: messages,
        })
    }

    #[test]
    fn messages_reach_the_template_as_given_but_for_role_content_and_calls_of_none() {
        let messages = read(json!([
            {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
            {"role": "user", "name": "ann", "content": "Hi"},
            {"role": "assistant", "content": "Hi!", "refusal": null, "annotations": [],
             "tool_calls": null, "function_call": null},
            {"role": "assistant", "content": "Well?", "tool_calls": []},
        ]))
        .unwrap();
        assert_eq!(
            Value::Array(messages),
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "name": "ann", "content": "Hi"},
                {"role": "assistant", "content": "Hi!", "refusal": null, "annotations": []},
                {"role": "assistant", "content": "Well?"},
            ])
        );
    }

    #[test]
    fn calls_that_were_made_are_told_as_templates_expect_them() {
        let call = |arguments: Value| {
            json!([{"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ]}])
        };
        for (sent, told) in [
            (json!("{\"a\": 1}"), json!({"a": 1})),
            (json!(""), json!({})),
            (json!({"a": 1}), json!({"a": 1})),
            (json!("{\"a\": "), json!("{\"a\": ")),
        ] {
            let messages = read(call(sent)).unwrap();
            assert_eq!(messages[0]["content"], "");
            let function = &messages[0]["tool_calls"][0]["function"];
            assert_eq!(function["arguments"], told);
        }
        let none = json!([{"role": "assistant", "content": null, "tool_calls": []}]);
        assert_eq!(read(none).unwrap_err().code, Code::MissingField);
    }

    #[test]
    fn every_fault_is_named_by_its_place() {
        let user = |content: Value| json!([{"role": "user", "content": content}]);
        for (messages, code, param) in [
            (json!([]), Code::InvalidValue, "messages"),
            (json!("hi"), Code::InvalidValue, "messages"),
            (json!(["hi"]), Code::InvalidValue, "messages[0]"),
            (
                json!([{"content": "hi"}]),
                Code::MissingField,
                "messages[0].role",
            ),
            (
                json!([{"role": "x", "content": "hi"}]),
                Code::InvalidValue,
                "messages[0].role",
            ),
            (
                json!([{"role": 5, "content": "hi"}]),
                Code::InvalidValue,
                "messages[0].role",
            ),
            (
                json!([{"role": "user"}]),
                Code::MissingField,
                "messages[0].content",
            ),
            (user(json!(null)), Code::MissingField, "messages[0].content"),
            (user(json!(5)), Code::InvalidValue, "messages[0].content"),
            (
                user(json!([{"type": "image_url"}])),
                Code::InvalidValue,
                "messages[0].content[0]",
            ),
            (
                user(json!([{"type": "text", "text": "a"}, "b"])),
                Code::InvalidValue,
                "messages[0].content[1]",
            ),
            (
                user(json!([{"type": "text"}])),
                Code::InvalidValue,
                "messages[0].content[0]",
            ),
        ] {
            let error = read(messages.clone()).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref()),
                (code, Some(param)),
                "{messages}"
            );
        }
    }
}
