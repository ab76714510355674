//! `tools`, `tool_choice` and `parallel_tool_calls`: functions that the model
//! may call, by the conventions of its chat template.

use serde_json::Value;
use uuid::Uuid;

use super::constraint::Constraint;
use super::errors::{ApiError, Code, shown};
use super::fields::{Fields, Given};
use super::forced_call;
use crate::text::{ChatTemplate, ToolCall, ToolFormat, ToolStream};

/// Tools that the model is shown.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// As the client gave them, for the template.
    pub(super) list: Value,
    format: ToolFormat,
    parallel: bool,
    /// What the text must be, where the client forces a call.
    pub(super) forced: Option<Constraint>,
    /// Whether one of them asks for arguments that follow its schema strictly.
    strict: bool,
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
    /// this server knows no calls, and choices of what there is not.
    pub(super) fn read(
        fields: &mut Fields,
        template: Option<&ChatTemplate>,
    ) -> Result<Option<Self>, ApiError> {
        let tools = fields.take("tools");
        let given = fields.take("tool_choice");
        let parallel = fields.boolean("parallel_tool_calls")?;
        let choice = given.as_ref().map_or(Ok(Choice::Auto), Choice::read)?;
        let mut strict = false;
        let list: &[Value] = match &tools {
            None => &[],
            Some(tools) => tools
                .value
                .as_array()
                .ok_or_else(|| tools.invalid("a list of objects with a `type` and a `function`"))?,
        };
        for (index, tool) in list.iter().enumerate() {
            strict |= read_tool(&format!("tools[{index}]"), tool)?;
        }
        let forced = choice.forced(list)?;
        if list.is_empty() || choice == Choice::None {
            return Ok(None);
        }
        let format = template.and_then(ChatTemplate::tool_format);
        let format = format.ok_or_else(|| {
            let message = "`tools` cannot be used: this model's chat template shows the model no \
                           tools, or asks for calls in a form that this server does not know";
            ApiError::of(Code::UnsupportedField, "tools", message)
        })?;
        Ok(Some(Self {
            forced: forced.map(|functions| forced_call::constraint(&functions, format)),
            list: list.into(),
            format,
            // Llama's templates take back one call in a message.
            parallel: parallel.unwrap_or(format != ToolFormat::Llama),
            strict,
        }))
    }

    /// Tells the calls of one answer from its text.
    pub(super) fn stream(&self) -> ToolStream {
        match self.forced {
            // The opening is in the prompt: what is left is one object.
            Some(_) => ToolStream::new(ToolFormat::Llama, false),
            None => ToolStream::new(self.format, self.parallel),
        }
    }

    /// What the prompt ends with, so that the text begins within a call.
    pub(super) fn opening(&self) -> &'static str {
        match self.forced {
            Some(_) => self.format.opening(),
            None => "",
        }
    }

    /// Whether the text is one call.
    pub(super) fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    /// Whether a client asks for strict arguments where they are as the model
    /// writes them.
    pub(super) fn ignores_strict(&self) -> bool {
        self.strict && self.forced.is_none()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice<'a> {
    Auto,
    None,
    /// One of the tools.
    Required,
    /// The tool of this name.
    Named(&'a str),
}

impl<'a> Choice<'a> {
    fn read(given: &'a Given) -> Result<Self, ApiError> {
        let function = given.value.pointer("/function/name");
        match given.value.as_str() {
            Some("auto") => Ok(Self::Auto),
            Some("none") => Ok(Self::None),
            Some("required") => Ok(Self::Required),
            None if given.value["type"] == "function" => function
                .and_then(Value::as_str)
                .map(Self::Named)
                .ok_or_else(|| {
                    let path = "tool_choice.function.name";
                    ApiError::invalid(path, function.unwrap_or(&Value::Null), "a function's name")
                }),
            _ => Err(given.invalid(
                "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": \
                 {\"name\": …}}",
            )),
        }
    }

    /// The functions of which one has to be called, if one has to.
    fn forced<'t>(&self, tools: &'t [Value]) -> Result<Option<Vec<&'t Value>>, ApiError> {
        let functions = tools.iter().map(|tool| &tool["function"]);
        let (functions, otherwise): (Vec<_>, _) = match self {
            Self::Auto | Self::None => return Ok(None),
            Self::Required => (
                functions.collect(),
                "is \"required\", but there are no `tools`".to_owned(),
            ),
            Self::Named(name) => (
                functions.filter(|f| f["name"] == *name).collect(),
                format!("names {}, which is none of `tools`", shown(&(*name).into())),
            ),
        };
        if functions.is_empty() {
            let message = format!("`tool_choice` {otherwise}");
            return Err(ApiError::of(Code::InvalidValue, "tool_choice", message));
        }
        Ok(Some(functions))
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
