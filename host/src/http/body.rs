//! From bytes to one JSON object, strictly.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::errors::{ApiError, Code};

/// Parses a request body.
///
/// # Errors
/// [`Code::InvalidBody`] unless the body is one JSON object in UTF-8 whose
/// objects, at every depth, name each key once. Nesting is limited to 128.
pub(super) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let refused = |message: String| ApiError::new(Code::InvalidBody, message);
    if body.is_empty() {
        return Err(refused(
            "the body is empty; it must be a JSON object".into(),
        ));
    }
    let Unique(value) = serde_json::from_slice(body)
        .map_err(|error| refused(format!("the body is not valid JSON: {error}")))?;
    match value {
        Value::Object(object) => Ok(object),
        other => Err(refused(format!(
            "the body must be a JSON object, not {}",
            type_name(&other)
        ))),
    }
}

/// What JSON calls the type of a value, with its article.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A JSON value in which no object names a key twice: `serde_json` alone would
/// keep the last one, and the first would be silently ignored.
pub(super) struct Unique(pub(super) Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Unique;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(Unique(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Unique, E> {
        Ok(Unique(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Unique, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        Ok(Unique(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Unique, E> {
        Ok(Unique(Value::String(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unique, A::Error> {
        let mut array = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(Unique(Value::Array(array)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Unique, A::Error> {
        let mut object = Map::new();
        while let Some((key, Unique(value))) = entries.next_entry::<String, Unique>()? {
            if object.contains_key(&key) {
                return Err(de::Error::custom(format_args!("key `{key}` appears twice")));
            }
            object.insert(key, value);
        }
        Ok(Unique(Value::Object(object)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_arrive_whole_and_in_order() {
        let object =
            parse_object(br#"{"b": [1, -2, 0.5, null, true], "a": {"c": "\u00e9"}}"#).unwrap();
        assert_eq!(
            Value::Object(object.clone()),
            json!({"b": [1, -2, 0.5, null, true], "a": {"c": "é"}})
        );
        assert_eq!(object.keys().collect::<Vec<_>>(), ["b", "a"]);
    }

    #[test]
    fn everything_else_is_an_invalid_body() {
        let nested = "[".repeat(10_000);
        let nested_in_object = format!("{{\"a\": {}", "[".repeat(10_000));
        let bodies: &[&[u8]] = &[
            b"",
            b" ",
            b"{",
            b"null",
            b"[]",
            b"\"x\"",
            b"7",
            b"{} {}",
            b"{\"a\": 1, \"a\": 1}",
            b"{\"a\": {\"b\": 1, \"b\": 2}}",
            b"{\"a\": NaN}",
            b"{\"a\": 1e999}",
            b"{\"prompt\": \"\xc4\xe3\"}",
            b"{\"prompt\": \"\\ud83d\"}",
            nested.as_bytes(),
            nested_in_object.as_bytes(),
        ];
        for body in bodies {
            let error = parse_object(body).unwrap_err();
            assert_eq!(error.code, Code::InvalidBody, "{error}");
        }
    }
}
