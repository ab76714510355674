//! Chat templates: Jinja, with what Hugging Face's templates expect around it.
//!
//! Known to differ from Jinja2: floats from 1e16 on and below 1e-4 are written
//! without an exponent, except by `tojson`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jiff::Zoned;
use jiff::fmt::strtime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use super::ToolFormat;
use super::to_json::to_json;

/// Work that one rendering may do: instructions, and 64-byte blocks of text.
/// A chat of 100,000 tokens needs about a tenth.
const FUEL: u64 = 4_000_000;

const NAME: &str = "chat template";
/// The one for chats with tools.
const TOOL_USE: &str = "chat template for tools";

/// Names of the values that a request gives by fields of their own.
const OWN_NAMES: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Why a chat template cannot be used, or cannot be used on these messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template itself is wrong; found when it is loaded.
    #[error("the chat template cannot be read: {0}")]
    Syntax(String),
    /// The template refused the messages, in its own words.
    #[error("the chat template refused the messages: {0}")]
    Raised(String),
    /// The template could not make sense of the messages.
    #[error("the chat template failed on these messages: {0}")]
    Render(String),
    /// A variable that the request sets in another way.
    #[error("`{0}` cannot be set through the chat template's variables")]
    OwnName(String),
    /// The template did more work than is allowed.
    #[error("the chat template did not end within its limit of work")]
    TooLong,
    /// A defect in the template engine, contained.
    #[error("the template engine failed: {0}")]
    Panicked(String),
}

/// What a chat is rendered from.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatInput<'a> {
    /// As the client gave them.
    pub messages: &'a [Json],
    pub tools: Option<&'a Json>,
    /// Whether the text ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Further variables (`chat_template_kwargs`).
    pub extra: Option<&'a Map<String, Json>>,
}

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    tool_format: Option<ToolFormat>,
}

/// The error behind `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Reads a template. `bos_token` and `eos_token` are the names of these
    /// tokens, for templates that write them.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(
        source: &str,
        bos_token: Option<String>,
        eos_token: Option<String>,
    ) -> Result<Self, TemplateError> {
        let load = || {
            let mut environment = environment()?;
            environment.add_template_owned(NAME, without_training_marks(source))?;
            Ok(environment)
        };
        Ok(Self {
            environment: load().map_err(|error| TemplateError::Syntax(sentence(&error)))?,
            bos_token,
            eos_token,
            tool_format: ToolFormat::of_template(source),
        })
    }

    /// The same, but for chats with tools, for which there is this template.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn with_tool_use(mut self, source: &str) -> Result<Self, TemplateError> {
        self.environment
            .add_template_owned(TOOL_USE, without_training_marks(source))
            .map_err(|error| TemplateError::Syntax(sentence(&error)))?;
        self.tool_format = ToolFormat::of_template(source);
        Ok(self)
    }

    /// How it has the model call tools; none if it shows it none.
    pub fn tool_format(&self) -> Option<ToolFormat> {
        self.tool_format
    }

    /// The text of a chat. It names special tokens, BOS among them where the
    /// template writes it, so it is tokenized with those read as such and
    /// nothing put in front.
    ///
    /// # Errors
    /// Messages that the template refuses or cannot handle.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, TemplateError> {
        let variables = self.variables(input)?;
        let template = match input
            .tools
            .and_then(|_| self.environment.get_template(TOOL_USE).ok())
        {
            Some(template) => Ok(template),
            None => self.environment.get_template(NAME),
        };
        let render = || template?.render(variables);
        catch_unwind(AssertUnwindSafe(render))
            .map_err(|panic| TemplateError::Panicked(super::panic_text(panic.as_ref())))?
            .map_err(|error| classify(&error))
    }

    /// `tools` and `documents` are none rather than undefined when absent, as
    /// Hugging Face passes them.
    fn variables(&self, input: &ChatInput<'_>) -> Result<BTreeMap<String, Value>, TemplateError> {
        let mut variables = BTreeMap::new();
        let tokens = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
        ];
        for (name, token) in tokens {
            if let Some(token) = token {
                variables.insert(name.to_string(), Value::from(token.as_str()));
            }
        }
        for (name, value) in input.extra.into_iter().flatten() {
            if OWN_NAMES.contains(&name.as_str()) {
                return Err(TemplateError::OwnName(name.clone()));
            }
            variables.insert(name.clone(), Value::from(Serde(value)));
        }
        let own = [
            Value::from(Serde(input.messages)),
            Value::from(Serde(input.tools)),
            Value::from(()),
            Value::from(input.add_generation_prompt),
        ];
        variables.extend(OWN_NAMES.map(String::from).into_iter().zip(own));
        Ok(variables)
    }
}

/// Jinja as `transformers` sets it up.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    Ok(environment)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(raised))
}

/// The local time, written as a format with `%` fields says.
fn strftime_now(format: &str) -> Result<String, Error> {
    strtime::format(format, &Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

fn classify(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(text)) = current.downcast_ref() {
            return TemplateError::Raised(text.clone());
        }
        if current.downcast_ref().map(Error::kind) == Some(ErrorKind::OutOfFuel) {
            return TemplateError::TooLong;
        }
        cause = current.source();
    }
    TemplateError::Render(sentence(error))
}

/// An error with its cause and line, without the template's text around it.
fn sentence(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(current) = cause {
        text = format!("{text}: {current}");
        cause = current.source();
    }
    text
}

/// `{% generation %}` marks what a model is trained on. It changes no text,
/// but opens a scope; so does `{% with %}`.
fn without_training_marks(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // The end of `{%}` is not its beginning.
        let Some(length) = rest[start + 2..].find("%}").map(|length| length + 4) else {
            break;
        };
        let (before, tag) = rest[..start + length].split_at(start);
        text.push_str(before);
        let statement = tag[2..length - 2].trim_matches(['-', '+']).trim();
        match statement {
            "generation" => text.push_str(&tag.replacen(statement, "with", 1)),
            "endgeneration" => text.push_str(&tag.replacen(statement, "endwith", 1)),
            _ => text.push_str(tag),
        }
        rest = &rest[start + length..];
    }
    text + rest
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
