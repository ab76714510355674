//! `tools`, `tool_choice` and `parallel_tool_calls`: functions that the model
//! may call, by the conventions of its chat template.

use serde_json::Value;
use uuid::Uuid;

use super::errors::{ApiError, Code, shown};
use super::fields::{Fields, Given};
use crate::text::{ChatTemplate, ToolCall, ToolFormat, ToolStream};

/// Tools that the model is shown.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// As the client gave them, for the template.
    pub(super) list: Value,
    format: ToolFormat,
    parallel: bool,
    /// Whether one of them asks for arguments that follow its schema strictly.
    pub(super) strict: bool,
}

/// A call in an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) index: usize,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
}

impl Call {
    pub(super) fn new(index: usize, call: ToolCall) -> Self {
        Self {
            index,
            id: format!("call_{}", Uuid::new_v4().simple()),
            name: call.name,
            arguments: call.arguments,
        }
    }
}

impl Tools {
    /// Takes the fields. None where there are no tools, or `tool_choice` keeps
    /// them from the model.
    ///
    /// # Errors
    /// Tools that the model's template has no place for, or in a form of which
    /// this server knows no calls, and choices that it cannot force.
    pub(super) fn read(
        fields: &mut Fields,
        template: Option<&ChatTemplate>,
    ) -> Result<Option<Self>, ApiError> {
        let tools = fields.take("tools");
        let choice = fields.take("tool_choice");
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        let choice = choice.as_ref().map(Choice::read).transpose()?;
        let Some(tools) = tools else {
            return Ok(None);
        };
        let list = tools
            .value
            .as_array()
            .ok_or_else(|| tools.invalid("a list of objects with a `type` and a `function`"))?;
        let mut strict = false;
        for (index, tool) in list.iter().enumerate() {
            strict |= read_tool(&format!("tools[{index}]"), tool)?;
        }
        if list.is_empty() || choice == Some(Choice::None) {
            return Ok(None);
        }
        let format = template.and_then(ChatTemplate::tool_format);
        let format = format.ok_or_else(|| {
            let message = "`tools` cannot be used: this model's chat template shows the model no \
                           tools, or asks for calls in a form that this server does not know";
            ApiError::of(Code::UnsupportedField, "tools", message)
        })?;
        Ok(Some(Self {
            list: tools.value,
            format,
            parallel,
            strict,
        }))
    }

    /// Tells the calls of one answer from its text.
    pub(super) fn stream(&self) -> ToolStream {
        ToolStream::new(self.format, self.parallel)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    None,
}

impl Choice {
    fn read(given: &Given) -> Result<Self, ApiError> {
        match &given.value {
            Value::String(text) if text == "auto" => Ok(Self::Auto),
            Value::String(text) if text == "none" => Ok(Self::None),
            Value::String(text) if text != "required" => Err(given.invalid("\"auto\" or \"none\"")),
            Value::String(_) | Value::Object(_) => {
                let message = format!(
                    "`tool_choice` is {}; a call cannot be forced here, only \"auto\" and \
                     \"none\" are supported",
                    shown(&given.value)
                );
                Err(ApiError::of(Code::UnsupportedField, "tool_choice", message))
            }
            _ => Err(given.invalid("\"auto\" or \"none\"")),
        }
    }
}

/// Checks a tool, which the template then gets as it is. Says whether it is
/// strict.
fn read_tool(path: &str, tool: &Value) -> Result<bool, ApiError> {
    let invalid = |path: String, value: &Value, expected: &str| {
        Err(ApiError::invalid(&path, value, expected))
    };
    if !tool.is_object() {
        return invalid(
            path.into(),
            tool,
            "an object with a `type` and a `function`",
        );
    }
    if tool["type"] != "function" {
        return invalid(format!("{path}.type"), &tool["type"], "\"function\"");
    }
    let function = &tool["function"];
    if !function.is_object() {
        return invalid(
            format!("{path}.function"),
            function,
            "an object with a `name`",
        );
    }
    let path = format!("{path}.function");
    match &function["name"] {
        Value::String(name) if !name.is_empty() => {}
        other => return invalid(format!("{path}.name"), other, "a name"),
    }
    for (member, expected, right) in [
        (
            "description",
            "a string",
            Value::is_string as fn(&Value) -> bool,
        ),
        ("parameters", "a JSON schema, an object", Value::is_object),
        ("strict", "true or false", Value::is_boolean),
    ] {
        let value = &function[member];
        if !value.is_null() && !right(value) {
            return invalid(format!("{path}.{member}"), value, expected);
        }
    }
    Ok(function["strict"] == true)
}
