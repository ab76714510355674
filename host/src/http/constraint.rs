//! `response_format` and the ecosystem's names for it: a constraint of the
//! whole text, which becomes a `grammar` stage.

use serde_json::{Map, Value, json};

use super::body::Unique;
use super::errors::{ApiError, Code, shown};
use super::fields::{Fields, Given, cut};

/// A constraint and where the request states it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Constraint {
    /// The field that describes it, for errors.
    pub(super) field: &'static str,
    /// The field that asks for it.
    pub(super) asked_by: &'static str,
    /// The parameters of the `grammar` stage.
    pub(super) params: Map<String, Value>,
}

/// `guided_*` and the parameter of the `grammar` stage that each stands for.
const GUIDED: [(&str, &str); 4] = [
    ("guided_json", "json_schema"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "lark"),
];

/// Members of `structured_outputs` likewise.
const STRUCTURED: [(&str, &str); 4] = [
    ("json", "json_schema"),
    ("regex", "regex"),
    ("choice", "choice"),
    ("grammar", "lark"),
];

/// Takes the constraint of a request, of which there is at most one.
pub(super) fn read(fields: &mut Fields) -> Result<Option<Constraint>, ApiError> {
    let mut found: Option<Constraint> = None;
    let format = fields
        .take("response_format")
        .map(|given| read_format(&given));
    let structured = fields
        .take("structured_outputs")
        .map(|given| read_structured(&given).map(Some));
    let guided = GUIDED.map(|(field, param)| {
        fields
            .take(field)
            .map(|given| Ok(Some(constraint(&given, param, &given.value))))
    });
    for next in [format, structured].into_iter().chain(guided).flatten() {
        let Some(next) = next? else { continue };
        if let Some(first) = &found {
            let message = format!(
                "`{}` and `{}` both constrain the text; give one of them",
                first.field, next.field
            );
            return Err(ApiError::of(Code::ConflictingFields, next.field, message));
        }
        found = Some(next);
    }
    Ok(found)
}

fn constraint(given: &Given, param: &str, value: &Value) -> Constraint {
    // Some clients send a schema as text.
    let parsed = match value {
        Value::String(text) if param == "json_schema" => serde_json::from_str(text).ok(),
        _ => None,
    };
    let value = parsed.map_or_else(|| value.clone(), |Unique(schema)| schema);
    Constraint {
        field: given.sent_as,
        asked_by: given.sent_as,
        params: Map::from_iter([(param.to_owned(), value)]),
    }
}

/// `response_format`: OpenAI's types, and ours.
fn read_format(given: &Given) -> Result<Option<Constraint>, ApiError> {
    const TYPES: &str =
        "an object whose `type` is text, json_object, json_schema, regex, choice or lark";
    let object = given
        .value
        .as_object()
        .ok_or_else(|| given.invalid(TYPES))?;
    let kind = object.get("type").and_then(Value::as_str);
    let kind = kind.ok_or_else(|| given.invalid(TYPES))?;
    let member: Option<&str> = match kind {
        "text" => None,
        // llama.cpp's servers take a schema here.
        "json_object" => Some("schema"),
        "json_schema" | "regex" | "choice" | "lark" => Some(kind),
        _ => return Err(given.invalid(TYPES)),
    };
    only(given.sent_as, object, &["type"], member)?;
    let value = member.and_then(|member| object.get(member));
    let value = value.filter(|value| !value.is_null());
    match (kind, value) {
        ("text", _) => Ok(None),
        ("json_object", value) => {
            let any_object = json!({"type": "object"});
            let schema = value.unwrap_or(&any_object);
            Ok(Some(constraint(given, "json_schema", schema)))
        }
        ("json_schema", Some(value)) => read_json_schema(given, value).map(Some),
        (_, Some(value)) => Ok(Some(constraint(given, kind, value))),
        (_, None) => Err(missing(&format!("{}.{kind}", given.sent_as))),
    }
}

/// OpenAI's `{name, description, schema, strict}`. The schema is always
/// enforced, so `strict` asks for nothing more.
fn read_json_schema(given: &Given, value: &Value) -> Result<Constraint, ApiError> {
    let path = format!("{}.json_schema", given.sent_as);
    let object = value
        .as_object()
        .ok_or_else(|| ApiError::invalid(&path, value, "an object with a `schema`"))?;
    only(
        &path,
        object,
        &["name", "description", "strict"],
        Some("schema"),
    )?;
    let schema = object.get("schema").filter(|schema| !schema.is_null());
    let schema = schema.ok_or_else(|| missing(&format!("{path}.schema")))?;
    Ok(constraint(given, "json_schema", schema))
}

/// vLLM's object with one of `json`, `regex`, `choice`, `grammar` and
/// `json_object`.
fn read_structured(given: &Given) -> Result<Constraint, ApiError> {
    let object = given.value.as_object();
    let members: Vec<_> = object
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null())
        .collect();
    let [(name, value)] = members[..] else {
        return Err(given.invalid("an object with one of json, regex, choice, grammar"));
    };
    if name == "json_object" && *value == Value::Bool(true) {
        return Ok(constraint(given, "json_schema", &json!({"type": "object"})));
    }
    match STRUCTURED.iter().find(|(member, _)| name == member) {
        Some((_, param)) => Ok(constraint(given, param, value)),
        None => Err(unknown(&format!("{}.{}", given.sent_as, cut(name)))),
    }
}

/// Refuses members of other names.
fn only(
    path: &str,
    object: &Map<String, Value>,
    known: &[&str],
    member: Option<&str>,
) -> Result<(), ApiError> {
    let given = object.iter().filter(|(_, value)| !value.is_null());
    for (name, _) in given {
        if !known.contains(&name.as_str()) && member != Some(name) {
            return Err(unknown(&format!("{path}.{}", cut(name))));
        }
    }
    Ok(())
}

fn unknown(path: &str) -> ApiError {
    let name = shown(&Value::from(path));
    ApiError::of(
        Code::UnknownField,
        path,
        format!("there is no field {name}"),
    )
}

fn missing(path: &str) -> ApiError {
    ApiError::of(Code::MissingField, path, format!("`{path}` is required"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::field_table::Endpoint;
    use super::*;

    fn of(body: &Value) -> Result<Option<Constraint>, ApiError> {
        let body = body.as_object().unwrap().clone();
        read(&mut Fields::admit(body, Endpoint::Chat).unwrap())
    }

    #[test]
    fn every_name_of_a_constraint_becomes_a_grammar_stage() {
        let schema = json!({"type": "object"});
        for (body, params) in [
            (
                json!({"response_format": {"type": "json_object"}}),
                json!({"json_schema": schema}),
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema":
                    {"name": "n", "strict": true, "schema": {"type": "string"}}}}),
                json!({"json_schema": {"type": "string"}}),
            ),
            (
                json!({"response_format": {"type": "regex", "regex": "a+"}}),
                json!({"regex": "a+"}),
            ),
            (
                json!({"response_format": {"type": "choice", "choice": ["a", "b"]}}),
                json!({"choice": ["a", "b"]}),
            ),
            (
                json!({"response_format": {"type": "lark", "lark": "start: \"a\""}}),
                json!({"lark": "start: \"a\""}),
            ),
            (
                json!({"guided_json": "{\"type\": \"object\"}"}),
                json!({"json_schema": schema}),
            ),
            (json!({"guided_choice": ["x"]}), json!({"choice": ["x"]})),
            (
                json!({"structured_outputs": {"grammar": "g", "json": null}}),
                json!({"lark": "g"}),
            ),
        ] {
            let found = of(&body).unwrap().unwrap();
            assert_eq!(Value::Object(found.params), params, "{body}");
        }
        assert_eq!(
            of(&json!({"response_format": {"type": "text"}})).unwrap(),
            None
        );
        assert_eq!(of(&json!({})).unwrap(), None);
    }

    #[test]
    fn what_is_no_constraint_is_refused_by_its_path() {
        for (body, code, param) in [
            (
                json!({"response_format": "json"}),
                Code::InvalidValue,
                "response_format",
            ),
            (
                json!({"response_format": {"type": "xml"}}),
                Code::InvalidValue,
                "response_format",
            ),
            (
                json!({"response_format": {"type": "json_schema"}}),
                Code::MissingField,
                "response_format.json_schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
                Code::MissingField,
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "regex", "regex": "a", "flags": "i"}}),
                Code::UnknownField,
                "response_format.flags",
            ),
            (
                json!({"structured_outputs": {"json": {}, "regex": "a"}}),
                Code::InvalidValue,
                "structured_outputs",
            ),
            (
                json!({"structured_outputs": {"whitespace_pattern": "a"}}),
                Code::UnknownField,
                "structured_outputs.whitespace_pattern",
            ),
            (
                json!({"guided_regex": "a", "response_format": {"type": "json_object"}}),
                Code::ConflictingFields,
                "guided_regex",
            ),
        ] {
            let error = of(&body).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref()),
                (code, Some(param)),
                "{body}"
            );
        }
    }
}
