//! The `tojson` filter as Hugging Face's templates have it: Python's
//! `json.dumps`, which leaves `<`, `>`, `&` and non-ASCII text alone and puts
//! a space after commas and colons.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deepest nesting, and widest indentation, in levels and in spaces.
const MAX_DEPTH: usize = 128;
const MAX_INDENT: usize = 64;

/// Writes a value as JSON. Options: `indent`, `ensure_ascii`, `separators`,
/// `sort_keys`, each as in `json.dumps`.
#[allow(clippy::needless_pass_by_value)] // filters are given their options so
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = indent(options.get("indent")?)?;
    let (comma, colon) = separators(options.get("separators")?, indent.is_some())?;
    let mut writer = Writer {
        text: String::new(),
        indent,
        comma,
        colon,
        ensure_ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.text)
}

struct Writer {
    text: String,
    indent: Option<String>,
    comma: String,
    colon: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refused(format!("tojson: nested deeper than {MAX_DEPTH}")));
        }
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            _ => self.text.push_str(&scalar(value)?),
        }
        Ok(())
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        self.text.push('[');
        let mut is_empty = true;
        for item in list.try_iter()?.checked() {
            self.before_item(is_empty, depth);
            self.value(&item?, depth + 1)?;
            is_empty = false;
        }
        self.after_items(is_empty, depth);
        self.text.push(']');
        Ok(())
    }

    fn map(&mut self, map: &Value, depth: usize) -> Result<(), Error> {
        let mut items = Vec::new();
        for key in map.try_iter()?.checked() {
            let key = key?;
            let value = map.get_item(&key)?;
            let name = match key.as_str() {
                Some(name) => name.to_string(),
                None => scalar(&key)?,
            };
            items.push((name, value));
        }
        if self.sort_keys {
            items.sort_by(|one, other| one.0.cmp(&other.0));
        }
        self.text.push('{');
        for (index, (name, value)) in items.iter().enumerate() {
            self.before_item(index == 0, depth);
            self.string(name);
            self.text.push_str(&self.colon);
            self.value(value, depth + 1)?;
        }
        self.after_items(items.is_empty(), depth);
        self.text.push('}');
        Ok(())
    }

    fn before_item(&mut self, is_first: bool, depth: usize) {
        if !is_first {
            self.text.push_str(&self.comma);
        }
        self.new_line(depth + 1);
    }

    fn after_items(&mut self, is_empty: bool, depth: usize) {
        if !is_empty {
            self.new_line(depth);
        }
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            self.text.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, string: &str) {
        self.text.push('"');
        for character in string.chars() {
            self.character(character);
        }
        self.text.push('"');
    }

    fn character(&mut self, character: char) {
        match character {
            '"' => self.text.push_str("\\\""),
            '\\' => self.text.push_str("\\\\"),
            '\n' => self.text.push_str("\\n"),
            '\r' => self.text.push_str("\\r"),
            '\t' => self.text.push_str("\\t"),
            '\u{8}' => self.text.push_str("\\b"),
            '\u{C}' => self.text.push_str("\\f"),
            '\0'..='\u{1F}' => self.escape(character),
            '\u{7F}'.. if self.ensure_ascii && character != '\u{7F}' => self.escape(character),
            _ => self.text.push(character),
        }
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(self.text, "\\u{unit:04x}");
        }
    }
}

/// Values without parts, and keys that are not strings.
fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(value.is_true().to_string()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => Ok(float(f64::try_from(value.clone())?)),
        kind => Err(refused(format!("tojson: {kind} is not JSON"))),
    }
}

/// A float as Python writes it. The exponent begins at the same sizes as in
/// Rust's debug form, but has a sign and at least two digits.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let text = format!("{value:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(size) => format!("{digits}e-{size:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
    }
}

/// A number of spaces, or the text to indent with.
fn indent(option: Option<Value>) -> Result<Option<String>, Error> {
    let Some(option) = option else {
        return Ok(None);
    };
    let indent = if let Some(text) = option.as_str() {
        text.to_string()
    } else {
        let n_spaces = i64::try_from(option)?.clamp(0, MAX_INDENT as i64 + 1);
        " ".repeat(n_spaces as usize)
    };
    if indent.len() > MAX_INDENT {
        return Err(refused(format!("tojson: indent above {MAX_INDENT}")));
    }
    Ok(Some(indent))
}

fn separators(option: Option<Value>, is_indented: bool) -> Result<(String, String), Error> {
    let Some(option) = option else {
        let comma = if is_indented { "," } else { ", " };
        return Ok((comma.into(), ": ".into()));
    };
    let parts: Vec<Value> = option.try_iter()?.collect();
    match parts.as_slice() {
        [comma, colon] => Ok((comma.to_string(), colon.to_string())),
        _ => Err(refused("tojson: separators must be two strings")),
    }
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use minijinja::value::Serde;
    use minijinja::{Environment, context};
    use serde_json::json;

    fn write(value: &serde_json::Value, call: &str) -> String {
        let mut environment = Environment::new();
        environment.add_filter("tojson", super::to_json);
        let template = format!("{{{{ value | {call} }}}}");
        let value = minijinja::Value::from(Serde(value));
        environment
            .render_str(&template, context! { value })
            .unwrap()
    }

    // Expected texts are what Python 3.11's json.dumps(..., ensure_ascii=False)
    // prints.

    #[test]
    fn writes_as_python_does() {
        let value = json!({"b": [1, 2.0, -0.5, true, null], "a": "<é & 日 \"q\" \\ \n\u{1}>"});
        assert_eq!(
            write(&value, "tojson"),
            r#"{"b": [1, 2.0, -0.5, true, null], "a": "<é & 日 \"q\" \\ \n\u0001>"}"#
        );
    }

    #[test]
    fn indents_as_python_does() {
        let value = json!({"a": [1, {"b": 2}], "empty": [], "none": {}});
        let expected = "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"empty\": [],\n  \"none\": {}\n}";
        assert_eq!(write(&value, "tojson(indent=2)"), expected);
        assert_eq!(write(&json!([1, 2]), "tojson(indent=0)"), "[\n1,\n2\n]");
        assert_eq!(write(&json!([1]), "tojson(indent=none)"), "[1]");
    }

    #[test]
    fn follows_the_other_options() {
        let value = json!({"b": 1, "a": "é😀\u{7F}"});
        assert_eq!(
            write(&value, "tojson(separators=(',', ':'), sort_keys=true)"),
            "{\"a\":\"é😀\u{7F}\",\"b\":1}"
        );
        assert_eq!(
            write(&value, "tojson(ensure_ascii=true)"),
            "{\"b\": 1, \"a\": \"\\u00e9\\ud83d\\ude00\u{7F}\"}"
        );
    }

    #[test]
    fn writes_floats_as_python_does() {
        let value = json!([1e16, 1e15, 1.5e-7, 0.0001, 0.00001, 1e100, 123_456_789.25]);
        assert_eq!(
            write(&value, "tojson"),
            "[1e+16, 1000000000000000.0, 1.5e-07, 0.0001, 1e-05, 1e+100, 123456789.25]"
        );
    }

    #[test]
    fn refuses_what_is_not_json() {
        let mut environment = Environment::new();
        environment.add_filter("tojson", super::to_json);
        for template in [
            "{{ missing | tojson }}",
            "{{ range | tojson }}",
            "{{ 1 | tojson(indent=1000000000) }}",
            "{{ 1 | tojson(width=2) }}",
            "{{ 1 | tojson(separators=(',')) }}",
        ] {
            assert!(environment.render_str(template, ()).is_err(), "{template}");
        }
    }
}
