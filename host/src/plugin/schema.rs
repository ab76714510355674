//! The JSON Schema of a plugin's parameters: a stranger's, so its size, depth
//! and references are bounded before it is compiled.

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

use super::fault::shorten;
use super::loaded::ParamsError;

const MAX_SCHEMA_BYTES: usize = 64 * 1024;
/// Nesting with every reference followed. A recursive schema is deeper than
/// any number, and could make a validation endless.
const MAX_DEPTH: u32 = 64;
/// Values with every reference followed: what one validation may visit.
const MAX_VALUES: u32 = 20_000;
/// Size of a compiled pattern.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// What one validation may cost: values of the schema times values of the
/// parameters, since each may be held against each.
const MAX_COMPARISONS: u64 = 200_000_000;
/// Bytes of text that count as a value: patterns read them all.
const BYTES_PER_VALUE: u64 = 4;

/// A compiled schema of a parameters object.
pub struct ParamsSchema {
    validator: Validator,
    /// With every reference followed.
    n_values: u32,
}

impl ParamsSchema {
    /// Parses and compiles a schema.
    ///
    /// # Errors
    /// One sentence on what is wrong with it.
    pub fn parse(text: &str) -> Result<(Value, Self), String> {
        if text.len() > MAX_SCHEMA_BYTES {
            return Err(format!(
                "it has {} bytes, the limit is {MAX_SCHEMA_BYTES}",
                text.len()
            ));
        }
        let schema: Value =
            serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
        let compiled = Self::new(&schema)?;
        Ok((schema, compiled))
    }

    /// Compiles a schema.
    ///
    /// # Errors
    /// One sentence on what is wrong with it.
    pub fn new(schema: &Value) -> Result<Self, String> {
        if !schema.is_object() {
            return Err("it is not a JSON object".to_owned());
        }
        let mut walk = Walk {
            root: schema,
            n_values: 0,
        };
        walk.check(schema, 0)?;
        jsonschema::options()
            .with_draft(Draft::Draft202012)
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN_BYTES))
            .offline()
            .build(schema)
            .map(|validator| Self {
                validator,
                n_values: walk.n_values,
            })
            .map_err(|error| shorten(format!("it is not a valid schema: {error}")))
    }

    /// Checks parameters.
    ///
    /// # Errors
    /// The first violation, or more parameters than can be checked in time.
    pub fn validate(&self, params: &Value) -> Result<(), ParamsError> {
        let (size, most) = (size(params), MAX_COMPARISONS / u64::from(self.n_values));
        if size > most {
            return Err(ParamsError {
                pointer: String::new(),
                message: format!(
                    "the parameters have the size of {size} values; with a schema of {} values \
                     the limit is {most}",
                    self.n_values
                ),
            });
        }
        self.validator
            .validate(params)
            .map_err(|error| ParamsError {
                pointer: error.instance_path().to_string(),
                message: shorten(error.to_string()),
            })
    }
}

/// Values in a value, itself among them, and text as so many more.
fn size(value: &Value) -> u64 {
    let text = |text: &str| text.len() as u64 / BYTES_PER_VALUE;
    match value {
        Value::String(string) => 1 + text(string),
        Value::Array(values) => 1 + values.iter().map(size).sum::<u64>(),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| text(name) + size(value);
            1 + members.iter().map(member).sum::<u64>()
        }
        _ => 1,
    }
}

/// A visit of every value of a schema with each reference followed.
struct Walk<'a> {
    root: &'a Value,
    n_values: u32,
}

impl<'a> Walk<'a> {
    fn check(&mut self, value: &'a Value, depth: u32) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!(
                "it is nested more than {MAX_DEPTH} deep, or refers to itself"
            ));
        }
        self.n_values += 1;
        if self.n_values > MAX_VALUES {
            return Err(format!(
                "it has more than {MAX_VALUES} values when its references are followed"
            ));
        }
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    self.check_keyword(key, value, depth)?;
                    self.check(value, depth + 1)?;
                }
                Ok(())
            }
            Value::Array(values) => values
                .iter()
                .try_for_each(|value| self.check(value, depth + 1)),
            _ => Ok(()),
        }
    }

    fn check_keyword(&mut self, key: &str, value: &'a Value, depth: u32) -> Result<(), String> {
        let Value::String(text) = value else {
            return Ok(());
        };
        match key {
            "$ref" => {
                let target = text
                    .strip_prefix('#')
                    // Whoever follows the reference would decode it first.
                    .filter(|pointer| !pointer.contains('%'))
                    .and_then(|pointer| self.root.pointer(pointer))
                    .ok_or_else(|| {
                        shorten(format!(
                            "`$ref` is \"{text}\", which is not a JSON pointer into the schema \
                             itself"
                        ))
                    })?;
                self.check(target, depth + 1)
            }
            "$dynamicRef" | "$recursiveRef" => Err(format!("`{key}` is not supported")),
            "$id" if depth > 0 => Err("`$id` is allowed at the top only".to_owned()),
            "$schema" if !text.starts_with("https://json-schema.org/draft/2020-12/schema") => {
                Err(shorten(format!(
                    "`$schema` is \"{text}\", which is not the draft 2020-12"
                )))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn refusal(schema: &Value) -> String {
        match ParamsSchema::new(schema) {
            Ok(_) => String::new(),
            Err(message) => message,
        }
    }

    #[test]
    fn a_violation_names_its_place() {
        let schema = ParamsSchema::new(&json!({
            "type": "object",
            "properties": {"words": {"type": "array", "items": {"$ref": "#/$defs/word"}}},
            "additionalProperties": false,
            "$defs": {"word": {"type": "string", "pattern": "^[a-z]+$"}}
        }))
        .unwrap();
        assert_eq!(schema.validate(&json!({"words": ["a", "bc"]})), Ok(()));
        assert_eq!(schema.validate(&json!({})), Ok(()));
        let error = schema.validate(&json!({"words": ["a", 7]})).unwrap_err();
        assert_eq!(error.pointer, "/words/1");
        let error = schema.validate(&json!({"words": ["A"]})).unwrap_err();
        assert_eq!(error.pointer, "/words/0");
        let error = schema.validate(&json!({"wrods": []})).unwrap_err();
        assert_eq!(error.pointer, "");
        assert!(error.message.contains("wrods"), "{}", error.message);
    }

    #[test]
    fn references_stay_within_the_schema() {
        for target in [
            "https://example.org/schema.json",
            "file:///etc/passwd",
            "other.json",
            "#/$defs/missing",
            "#anchor",
        ] {
            let message = refusal(&json!({"properties": {"a": {"$ref": target}}}));
            assert!(message.contains(target), "{target}: {message}");
        }
    }

    #[test]
    fn a_schema_that_refers_to_itself_is_refused() {
        assert!(refusal(&json!({"$ref": "#"})).contains("refers to itself"));
        let schema = json!({
            "$ref": "#/$defs/a",
            "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}
        });
        assert!(refusal(&schema).contains("refers to itself"));
    }

    #[test]
    fn references_that_multiply_are_refused() {
        let mut definitions = serde_json::Map::new();
        definitions.insert("d0".to_owned(), json!({"type": "object"}));
        for i in 1..16 {
            let below = json!({"$ref": format!("#/$defs/d{}", i - 1)});
            definitions.insert(format!("d{i}"), json!({"allOf": [below, below]}));
        }
        let schema = json!({"$ref": "#/$defs/d15", "$defs": definitions});
        assert!(refusal(&schema).contains("values"), "{}", refusal(&schema));
    }

    /// A schema of 10,004 values: each number may be compared with ten thousand.
    #[test]
    fn no_schema_is_held_against_too_many_values() {
        let options: Vec<u32> = (0..10_000).collect();
        let schema = ParamsSchema::new(&json!({"items": {"enum": options}, "title": "t"})).unwrap();
        // 200,000,000 / 10,004 is 19,992, of which the list itself is one.
        assert_eq!(schema.validate(&json!(vec![0; 19_991])), Ok(()));
        let error = schema.validate(&json!(vec![0; 19_992])).unwrap_err();
        assert!(
            error.message.contains("19993 values") && error.message.contains("19992"),
            "{}",
            error.message
        );
        // A text is a value and a quarter of its bytes.
        assert_eq!(schema.validate(&json!("a".repeat(79_960))), Ok(()));
        assert!(schema.validate(&json!("a".repeat(79_980))).is_err());
    }

    #[test]
    fn text_that_is_no_schema_is_refused() {
        for text in [
            "",
            "{",
            "[]",
            "true",
            "{\"type\": 7}",
            "{\"type\": \"objekt\"}",
        ] {
            assert!(ParamsSchema::parse(text).is_err(), "{text}");
        }
        let long = format!("{{\"title\": \"{}\"}}", "x".repeat(MAX_SCHEMA_BYTES));
        assert!(ParamsSchema::parse(&long).is_err());
    }

    #[test]
    fn a_pattern_that_backtracks_is_linear() {
        let schema = ParamsSchema::new(&json!({"items": {"pattern": "^(a+)+$"}})).unwrap();
        let text = "a".repeat(50_000) + "b";
        assert!(schema.validate(&json!([text])).is_err());
        assert!(!refusal(&json!({"pattern": "^(?=a)b"})).is_empty());
    }
}
