//! A call that the client forces: the text is one JSON object that names a
//! function and has arguments that fit its schema.

use serde_json::{Map, Value, json};

use super::constraint::Constraint;
use crate::text::ToolFormat;

/// The text is a call of one of these functions, each as in `tools[i].function`.
pub(super) fn constraint(functions: &[&Value], format: ToolFormat) -> Constraint {
    let arguments = format.arguments_key();
    // A draft can be named by the outermost schema only.
    let draft = functions
        .iter()
        .find_map(|function| function["parameters"].get("$schema"));
    let call = |function: &Value, place: &str| call(function, arguments, place, draft);
    let mut schema = match functions {
        [function] => call(function, "#"),
        _ => {
            let calls = functions.iter().enumerate();
            let calls = calls.map(|(index, function)| call(function, &format!("#/anyOf/{index}")));
            json!({"anyOf": calls.collect::<Vec<_>>()})
        }
    };
    if let Some(draft) = draft {
        schema["$schema"] = draft.clone();
    }
    Constraint {
        field: "tools",
        params: Map::from_iter([("json_schema".to_owned(), schema)]),
    }
}

/// The schema of a call, which stands at `place` of one of this draft.
fn call(function: &Value, arguments: &str, place: &str, draft: Option<&Value>) -> Value {
    let parameters = match function["parameters"].as_object() {
        // A function without parameters, by OpenAI's definition.
        None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Some(schema) => {
            let mut schema = schema.clone();
            if schema.get("$schema") == draft {
                schema.shift_remove("$schema");
            }
            moved(&schema.into(), &format!("{place}/properties/{arguments}"))
        }
    };
    json!({
        "type": "object",
        "properties": {"name": {"const": function["name"]}, arguments: parameters},
        "required": ["name", arguments],
        "additionalProperties": false,
    })
}

/// A schema that was a whole document and now stands at `place` of another:
/// its references begin there.
fn moved(schema: &Value, place: &str) -> Value {
    let Some(members) = schema.as_object() else {
        return schema.clone();
    };
    let member = |(keyword, value): (&String, &Value)| {
        let value = match (keyword.as_str(), value) {
            ("$ref", Value::String(reference)) => match reference.strip_prefix('#') {
                Some(rest) => format!("{place}{rest}").into(),
                None => value.clone(),
            },
            // Data, not schemas.
            ("const" | "enum" | "default" | "examples", _) => value.clone(),
            // Schemas by names, which may be those of keywords.
            (
                "properties" | "patternProperties" | "dependentSchemas" | "$defs" | "definitions",
                Value::Object(named),
            ) => {
                let named = named.iter();
                Value::Object(named.map(|(k, v)| (k.clone(), moved(v, place))).collect())
            }
            (_, Value::Array(items)) => items.iter().map(|item| moved(item, place)).collect(),
            _ => moved(value, place),
        };
        (keyword.clone(), value)
    };
    Value::Object(members.iter().map(member).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(functions: &[&Value], format: ToolFormat) -> Value {
        constraint(functions, format).params["json_schema"].clone()
    }

    #[test]
    fn one_function_is_named_and_its_arguments_fit() {
        let city = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let weather = json!({"name": "weather", "description": "Now.", "parameters": city});
        assert_eq!(
            schema(&[&weather], ToolFormat::Hermes),
            json!({
                "type": "object",
                "properties": {"name": {"const": "weather"}, "arguments": city},
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        );
        let llama = schema(&[&weather], ToolFormat::Llama);
        assert_eq!(llama["properties"]["parameters"], city);
        assert_eq!(llama["required"], json!(["name", "parameters"]));
    }

    #[test]
    fn several_are_alternatives_and_none_of_parameters_is_an_empty_object() {
        let (a, b) = (json!({"name": "a"}), json!({"name": "b"}));
        let both = schema(&[&a, &b], ToolFormat::Hermes);
        let calls = both["anyOf"].as_array().map(Vec::as_slice);
        assert_eq!(calls.map(<[_]>::len), Some(2));
        assert_eq!(both["anyOf"][1]["properties"]["name"]["const"], "b");
        assert_eq!(
            both["anyOf"][0]["properties"]["arguments"],
            json!({"type": "object", "properties": {}, "additionalProperties": false})
        );
    }

    #[test]
    fn a_draft_is_named_outside_where_all_name_the_same() {
        let of = |draft: &str| json!({"name": "f", "parameters": {"$schema": draft}});
        let (seven, six) = (of("draft-07"), of("draft-06"));
        let alone = schema(&[&seven], ToolFormat::Hermes);
        assert_eq!(alone["$schema"], "draft-07");
        assert_eq!(alone["properties"]["arguments"], json!({}));
        // Two different ones stay for the grammar to refuse.
        let both = schema(&[&seven, &six, &seven], ToolFormat::Hermes);
        assert_eq!(both["$schema"], "draft-07");
        let arguments = |index: usize| &both["anyOf"][index]["properties"]["arguments"];
        assert_eq!(arguments(1), &json!({"$schema": "draft-06"}));
        assert_eq!(arguments(2), &json!({}));
    }

    #[test]
    fn references_follow_the_schema_to_its_place() {
        let parameters = json!({
            "$defs": {"Unit": {"enum": ["c", {"$ref": "#/data"}]}, "properties": {"$ref": "#"}},
            "properties": {
                "unit": {"$ref": "#/$defs/Unit"},
                "enum": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"$ref": "https://x/#y"}]},
                "$ref": {"type": "string", "default": {"$ref": "#"}},
            },
        });
        let function = json!({"name": "f", "parameters": parameters});
        let at = "#/anyOf/1/properties/arguments";
        let other = json!({"name": "g"});
        let schema = schema(&[&other, &function], ToolFormat::Hermes);
        assert_eq!(
            schema["anyOf"][1]["properties"]["arguments"],
            json!({
                "$defs": {
                    "Unit": {"enum": ["c", {"$ref": "#/data"}]},
                    "properties": {"$ref": at},
                },
                "properties": {
                    "unit": {"$ref": format!("{at}/$defs/Unit")},
                    "enum": {"anyOf": [
                        {"$ref": format!("{at}/$defs/Unit")}, {"$ref": "https://x/#y"},
                    ]},
                    "$ref": {"type": "string", "default": {"$ref": "#"}},
                },
            })
        );
    }
}
