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
    let mut schema = if let [function] = functions {
        call(function, "#")
    } else {
        let calls = functions.iter().enumerate();
        let calls = calls.map(|(index, function)| call(function, &format!("#/anyOf/{index}")));
        json!({"anyOf": calls.collect::<Vec<_>>()})
    };
    if let Some(draft) = draft {
        schema["$schema"] = draft.clone();
    }
    Constraint {
        field: "tools",
        asked_by: "tool_choice",
        params: Map::from_iter([("json_schema".to_owned(), schema)]),
    }
}

/// The schema of a call, which stands at `place` of one of this draft.
fn call(function: &Value, arguments: &str, place: &str, draft: Option<&Value>) -> Value {
    let mut parameters = match &function["parameters"] {
        // A function without parameters, by OpenAI's definition.
        Value::Null => json!({"properties": {}}),
        schema => schema.clone(),
    };
    if let Some(members) = parameters.as_object_mut() {
        if members.get("$schema") == draft {
            members.shift_remove("$schema");
        }
        if !members.contains_key("$ref") {
            members.entry("type").or_insert_with(|| "object".into());
        }
    }
    close(&mut parameters);
    move_to(&mut parameters, &format!("{place}/properties/{arguments}"));
    json!({
        "type": "object",
        "properties": {"name": {"const": function["name"]}, arguments: parameters},
        "required": ["name", arguments],
        "additionalProperties": false,
    })
}

/// Leaves objects the members that they name: a function knows no others, and
/// small models go on for ever once they begin to invent some. Nothing is
/// changed where several schemas describe one object together, none of which
/// could then have members of another.
fn close(parameters: &mut Value) {
    let mut together = false;
    visit(parameters, &mut |schema| {
        let has = |keywords: &[&str]| keywords.iter().any(|name| schema.contains_key(*name));
        let members = [
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "minProperties",
        ];
        let others = ["$ref", "anyOf", "oneOf", "not", "if", "dependentSchemas"];
        together |= has(&["allOf"]) || has(&members) && has(&others);
    });
    if together {
        return;
    }
    visit(parameters, &mut |schema| {
        let Some(named) = schema.get("properties").and_then(Value::as_object) else {
            return;
        };
        let is_named = |name: &Value| name.as_str().is_some_and(|name| named.contains_key(name));
        let required = schema.get("required").and_then(Value::as_array);
        let is_open = ["additionalProperties", "patternProperties", "minProperties"]
            .iter()
            .any(|keyword| schema.contains_key(*keyword));
        if !is_open && required.is_none_or(|names| names.iter().all(is_named)) {
            schema.insert("additionalProperties".to_owned(), false.into());
        }
    });
}

/// Lets references of a schema that was a whole document, and now stands at
/// `place` of another, begin there.
fn move_to(parameters: &mut Value, place: &str) {
    visit(parameters, &mut |schema| {
        if let Some(Value::String(reference)) = schema.get_mut("$ref")
            && let Some(rest) = reference.strip_prefix('#')
            && (rest.is_empty() || rest.starts_with('/'))
        {
            *reference = format!("{place}{rest}");
        }
    });
}

/// Changes a schema and then all that are inside it.
fn visit(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    let Some(members) = schema.as_object_mut() else {
        return;
    };
    change(members);
    for (keyword, value) in members.iter_mut() {
        match (keyword.as_str(), value) {
            // Data, not schemas.
            ("const" | "enum" | "default" | "examples", _) => {}
            // Schemas by names, which may be those of keywords.
            (
                "properties" | "patternProperties" | "dependentSchemas" | "$defs" | "definitions",
                Value::Object(named),
            ) => named.values_mut().for_each(|inner| visit(inner, change)),
            (_, Value::Array(items)) => items.iter_mut().for_each(|inner| visit(inner, change)),
            (_, inner) => visit(inner, change),
        }
    }
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
        let mut closed = city;
        closed["additionalProperties"] = false.into();
        assert_eq!(
            schema(&[&weather], ToolFormat::Hermes),
            json!({
                "type": "object",
                "properties": {"name": {"const": "weather"}, "arguments": closed},
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        );
        let llama = schema(&[&weather], ToolFormat::Llama);
        assert_eq!(llama["properties"]["parameters"], closed);
        assert_eq!(llama["required"], json!(["name", "parameters"]));
    }

    #[test]
    fn objects_have_the_members_that_they_name_unless_they_say_otherwise() {
        let closed = |schema: &Value| {
            let mut schema = schema.clone();
            close(&mut schema);
            schema
        };
        let one = json!({"properties": {"a": {}}, "required": ["a"]});
        let mut one_closed = one.clone();
        one_closed["additionalProperties"] = false.into();
        let nested = |inner: &Value| {
            json!({
                "$defs": {"One": inner},
                "anyOf": [inner, {"type": "null"}, {"items": inner}],
            })
        };
        assert_eq!(closed(&nested(&one)), nested(&one_closed));
        for stays in [
            json!({"type": "object"}),
            json!({"properties": {}, "additionalProperties": true}),
            json!({"properties": {}, "patternProperties": {"^x": {}}}),
            json!({"properties": {"a": {}}, "required": ["b"]}),
            json!({"properties": {"a": {}}, "minProperties": 2}),
            // Together they describe an object of `a` and another member.
            json!({"allOf": [one, {"properties": {"b": {}}}]}),
            json!({"properties": {"a": {}}, "anyOf": [{"required": ["b"]}, {"required": ["c"]}]}),
            json!({"properties": {"a": {}}, "$ref": "#/$defs/B", "$defs": {"B": one}}),
            json!({"anyOf": [{"properties": {"a": {}}}], "required": ["c"]}),
            // Data.
            json!({"const": {"properties": {}}, "enum": [{"properties": {}}]}),
        ] {
            assert_eq!(closed(&stays), stays);
        }
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
        assert_eq!(alone["properties"]["arguments"], json!({"type": "object"}));
        // Two different ones stay for the grammar to refuse.
        let both = schema(&[&seven, &six, &seven], ToolFormat::Hermes);
        assert_eq!(both["$schema"], "draft-07");
        let arguments = |index: usize| &both["anyOf"][index]["properties"]["arguments"];
        assert_eq!(
            arguments(1),
            &json!({"$schema": "draft-06", "type": "object"})
        );
        assert_eq!(arguments(2), &json!({"type": "object"}));
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
                "type": "object",
                "additionalProperties": false,
            })
        );
    }
}
