//! JSON Schemas that the engine honours in full.
//!
//! The engine ignores keywords that it does not know, and some that it does:
//! everything that could change what is valid is refused here by name, and only
//! then handed on.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::pattern;

/// One space after a comma or a colon, as Python's `json.dumps` writes and
/// models have read most.
const ITEM_SEPARATOR: &str = ", ";
const KEY_SEPARATOR: &str = ": ";
/// Without `\u`, each string has one spelling: no second one of a key slips by.
const ESCAPES: &str = "nrbtf\\\"";

/// Say nothing of what is valid.
const ANNOTATIONS: [&str; 14] = [
    "$anchor",
    "$comment",
    "$id",
    "contentEncoding",
    "contentMediaType",
    "default",
    "deprecated",
    "description",
    "discriminator",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];
const TYPES: [&str; 7] = [
    "null", "boolean", "number", "integer", "string", "array", "object",
];
const FORMATS: [&str; 10] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];
/// Drafts that the engine reads as the latest one, in all that is let through.
const DRAFTS: [&str; 4] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
];

/// Deepest nesting of schemas.
const MAX_DEPTH: usize = 64;
/// Deepest `oneOf` in `oneOf` by way of references that are read through.
const MAX_EXPANSIONS: usize = 4;
/// Integers from here on are not all floating-point numbers, as which the
/// engine reads them.
const MAX_INTEGER: f64 = 9_007_199_254_740_992.0;
/// Most significant digits of a `multipleOf`.
const MAX_DIVISOR_DIGITS: usize = 4;

/// The schema as the engine takes it.
///
/// # Errors
/// A keyword that would not be honoured, with its place.
pub(crate) fn prepare(schema: &Value) -> Result<Value, String> {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err("nothing fits the schema false".to_owned()),
        schema => schema.clone(),
    };
    let mut check = Check::default();
    check.schema(&schema, "#", 0)?;
    check.references(&schema)?;
    let whole = schema.clone();
    rewrite(&whole, &mut schema, 0);
    if let Some(members) = schema.as_object_mut() {
        members.insert(
            "x-guidance".to_owned(),
            json!({
                "item_separator": ITEM_SEPARATOR,
                "key_separator": KEY_SEPARATOR,
                "whitespace_flexible": false,
                "json_allowed_escapes": ESCAPES,
            }),
        );
    }
    Ok(schema)
}

/// The engine's message in the terms of a request.
pub(crate) fn explain(error: &str) -> String {
    if error.contains("coerce_one_of") {
        return "`oneOf` is supported only where no two of its schemas can be true at once, as \
                shown by types or by a required property with different constants"
            .to_owned();
    }
    if error.contains("circular references with sibling keys") {
        return format!("`$ref` beside other keywords must not lead back to itself ({error})");
    }
    error.to_owned()
}

#[derive(Default)]
struct Check {
    /// Where schemas are, as references name them.
    places: BTreeSet<String>,
    /// Reference and place of each `$ref`.
    references: Vec<(String, String)>,
}

impl Check {
    fn schema(&mut self, schema: &Value, place: &str, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!(
                "schemas are nested deeper than {MAX_DEPTH} at {place}"
            ));
        }
        self.places.insert(place.to_owned());
        let members = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(members) => members,
            _ => {
                return Err(format!(
                    "the schema at {place} is neither an object nor a boolean"
                ));
            }
        };
        for (keyword, value) in members {
            self.keyword(keyword, value, place, depth)
                .map_err(|error| format!("`{keyword}` at {place}: {error}"))?;
        }
        check_together(members)
            .map_err(|(keyword, error)| format!("`{keyword}` at {place}: {error}"))
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &Value,
        place: &str,
        depth: usize,
    ) -> Result<(), String> {
        match keyword {
            "$schema" => check_draft(value, place),
            "$ref" => {
                let reference = value.as_str().ok_or("must be a string")?;
                self.references
                    .push((reference.to_owned(), place.to_owned()));
                Ok(())
            }
            "type" => check_type(value),
            "const" => check_numbers(value),
            "enum" => check_numbers(list(value)?),
            "format" => check_format(value),
            "pattern" => pattern::check(value.as_str().ok_or("must be a string")?),
            "required" => check_strings(value),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => check_count(value),
            // The exclusive ones are booleans in draft 4, which is not read.
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => check_number(value),
            "multipleOf" => match value.as_f64() {
                Some(number) if number > 0.0 => check_digits(number),
                _ => Err("must be a number above zero".to_owned()),
            },
            "uniqueItems" if value == &Value::Bool(false) => Ok(()),
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                self.named(keyword, value, place, depth)
            }
            "anyOf" | "allOf" | "oneOf" | "prefixItems" => {
                self.listed(keyword, value, place, depth)
            }
            "items" if value.is_array() => self.listed(keyword, value, place, depth),
            "items" | "additionalItems" | "additionalProperties" => {
                self.inner(value, &format!("{place}/{keyword}"), depth)
            }
            _ if ANNOTATIONS.contains(&keyword) => Ok(()),
            _ => Err("this keyword is not supported".to_owned()),
        }
    }

    fn inner(&mut self, schema: &Value, place: &str, depth: usize) -> Result<(), String> {
        self.schema(schema, place, depth + 1)
    }

    fn named(
        &mut self,
        keyword: &str,
        value: &Value,
        place: &str,
        depth: usize,
    ) -> Result<(), String> {
        for (name, schema) in value.as_object().ok_or("must be an object")? {
            match keyword {
                "patternProperties" => {
                    pattern::check(name).map_err(|error| format!("{name:?}: {error}"))?;
                }
                "properties" if name.chars().any(char::is_control) => {
                    return Err(format!("the name {name:?} has a control character"));
                }
                _ => {}
            }
            self.inner(schema, &format!("{place}/{keyword}/{name}"), depth)?;
        }
        Ok(())
    }

    fn listed(
        &mut self,
        keyword: &str,
        value: &Value,
        place: &str,
        depth: usize,
    ) -> Result<(), String> {
        let schemas = value.as_array().filter(|schemas| !schemas.is_empty());
        for (i, schema) in schemas
            .ok_or("must be a list of schemas")?
            .iter()
            .enumerate()
        {
            self.inner(schema, &format!("{place}/{keyword}/{i}"), depth)?;
        }
        Ok(())
    }

    /// Every reference leads to a schema, and not only to another reference
    /// for ever.
    fn references(&self, whole: &Value) -> Result<(), String> {
        for (reference, place) in &self.references {
            let error = |what: &str| Err(format!("`$ref` at {place}: {reference:?} {what}"));
            let mut next = reference.as_str();
            for _ in 0..=self.references.len() {
                if !next.starts_with('#') {
                    return error("is outside this schema, and nothing is fetched");
                }
                if !self.places.contains(root_as_hash(next)) {
                    return error("leads to no schema; it must be # or #/… with unescaped names");
                }
                let further = find(whole, next).and_then(|schema| schema.get("$ref"));
                let Some(Value::String(further)) = further else {
                    next = "";
                    break;
                };
                next = further;
            }
            if !next.is_empty() {
                return error("leads back to itself");
            }
        }
        Ok(())
    }
}

/// What keywords ask together.
fn check_together(members: &Map<String, Value>) -> Result<(), (&'static str, String)> {
    let count = |keyword: &str| members.get(keyword).and_then(Value::as_u64).unwrap_or(0);
    let required = members
        .get("required")
        .and_then(Value::as_array)
        .map_or(0, Vec::len) as u64;
    // The same free key may come twice and then counts once.
    if count("minProperties") > required + 1 {
        return Err((
            "minProperties",
            "is supported up to one more than the number of `required` names".to_owned(),
        ));
    }
    let draft = members
        .get("$schema")
        .and_then(Value::as_str)
        .unwrap_or(DRAFTS[0]);
    if draft.trim_end_matches('#') != DRAFTS[0] && members.contains_key("prefixItems") {
        return Err(("prefixItems", "needs draft 2020-12".to_owned()));
    }
    Ok(())
}

fn check_draft(value: &Value, place: &str) -> Result<(), String> {
    if place != "#" {
        return Err("may stand in the outermost schema only".to_owned());
    }
    let draft = value.as_str().ok_or("must be a string")?;
    if DRAFTS.contains(&draft.trim_end_matches('#')) {
        return Ok(());
    }
    Err(format!("{draft:?} is not one of {}", DRAFTS.join(", ")))
}

fn check_type(value: &Value) -> Result<(), String> {
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let fits = match value {
        Value::Array(names) => !names.is_empty() && names.iter().all(known),
        name => known(name),
    };
    if fits {
        return Ok(());
    }
    Err(format!(
        "must be one of {}, or a list of them",
        TYPES.join(", ")
    ))
}

fn check_format(value: &Value) -> Result<(), String> {
    let format = value.as_str().ok_or("must be a string")?;
    if FORMATS.contains(&format) {
        return Ok(());
    }
    Err(format!("{format:?} is not one of {}", FORMATS.join(", ")))
}

fn check_strings(value: &Value) -> Result<(), String> {
    match value.as_array() {
        Some(values) if values.iter().all(Value::is_string) => Ok(()),
        _ => Err("must be a list of strings".to_owned()),
    }
}

fn check_count(value: &Value) -> Result<(), String> {
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
    count
        .map(|_| ())
        .ok_or_else(|| "must be an integer from 0 to 4294967295".to_owned())
}

fn check_number(value: &Value) -> Result<(), String> {
    match value.as_f64() {
        None => Err("must be a number".to_owned()),
        Some(number) if number.abs() > MAX_INTEGER => {
            Err(format!("numbers beyond ±{MAX_INTEGER} are not supported"))
        }
        Some(_) => Ok(()),
    }
}

/// The engine keeps a state for each remainder.
fn check_digits(number: f64) -> Result<(), String> {
    let digits = number.to_string().replace('.', "");
    let n_digits = digits.trim_matches('0').len();
    if n_digits <= MAX_DIVISOR_DIGITS {
        return Ok(());
    }
    Err(format!(
        "has {n_digits} significant digits, the most is {MAX_DIVISOR_DIGITS}"
    ))
}

/// Checks every number in a value.
fn check_numbers(value: &Value) -> Result<(), String> {
    match value {
        Value::Number(_) => check_number(value),
        Value::Array(values) => values.iter().try_for_each(check_numbers),
        Value::Object(members) => members.values().try_for_each(check_numbers),
        _ => Ok(()),
    }
}

fn list(value: &Value) -> Result<&Value, String> {
    match value.as_array() {
        Some(values) if !values.is_empty() => Ok(value),
        _ => Err("must be a list of values".to_owned()),
    }
}

fn root_as_hash(reference: &str) -> &str {
    if reference == "#/" { "#" } else { reference }
}

/// The schema that a reference of this form names.
fn find<'a>(whole: &'a Value, reference: &str) -> Option<&'a Value> {
    let path = root_as_hash(reference).strip_prefix('#')?;
    path.split('/')
        .skip(1)
        .try_fold(whole, |value, name| match value {
            Value::Array(values) => values.get(name.parse::<usize>().ok()?),
            value => value.get(name),
        })
}

/// Leaves out what asks nothing, and puts what they refer to in place of the
/// references in a `oneOf`: the engine does not read through them when it
/// looks whether its schemas exclude each other.
fn rewrite(whole: &Value, value: &mut Value, depth: usize) {
    match value {
        Value::Array(values) => values
            .iter_mut()
            .for_each(|value| rewrite(whole, value, depth)),
        Value::Object(members) => {
            if members.get("uniqueItems") == Some(&Value::Bool(false)) {
                members.shift_remove("uniqueItems");
            }
            for (keyword, value) in members.iter_mut() {
                let expands = keyword == "oneOf" && depth < MAX_EXPANSIONS;
                if let (true, Value::Array(options)) = (expands, &mut *value) {
                    for option in options {
                        expand(whole, option, depth);
                    }
                } else if !matches!(keyword.as_str(), "const" | "enum" | "default" | "examples") {
                    rewrite(whole, value, depth);
                }
            }
        }
        _ => {}
    }
}

fn expand(whole: &Value, option: &mut Value, depth: usize) {
    let mut found = None;
    let mut next = &*option;
    while let Some(reference) = bare_reference(next).and_then(|reference| find(whole, reference)) {
        found = Some(reference);
        next = reference;
    }
    if let Some(found) = found {
        *option = found.clone();
        rewrite(whole, option, depth + 1);
    } else {
        rewrite(whole, option, depth);
    }
}

/// What a schema refers to that asks nothing else.
fn bare_reference(schema: &Value) -> Option<&str> {
    let members = schema.as_object()?;
    let reference = members.get("$ref")?.as_str()?;
    let asks = |keyword: &&String| *keyword != "$ref" && !ANNOTATIONS.contains(&keyword.as_str());
    members.keys().find(asks).is_none().then_some(reference)
}

#[cfg(test)]
mod tests {
    use super::prepare;
    use serde_json::{Value, json};

    fn error(schema: &Value) -> String {
        prepare(schema).expect_err(&schema.to_string())
    }

    #[test]
    fn a_keyword_that_is_not_honoured_is_named_with_its_place() {
        for keyword in [
            "not",
            "if",
            "then",
            "else",
            "contains",
            "minContains",
            "maxContains",
            "propertyNames",
            "dependentRequired",
            "dependentSchemas",
            "dependencies",
            "unevaluatedItems",
            "unevaluatedProperties",
            "$dynamicRef",
            "$recursiveRef",
            "nullable",
            "maxlength",
            "x-guidance",
        ] {
            let schema = json!({"properties": {"a": {"type": "string", keyword: {}}}});
            assert_eq!(
                error(&schema),
                format!(
                    "`properties` at #: `{keyword}` at #/properties/a: this keyword is not supported"
                )
            );
        }
    }

    #[test]
    fn a_value_that_is_not_honoured_is_refused() {
        for (schema, words) in [
            (json!({"uniqueItems": true}), "`uniqueItems`"),
            (json!({"format": "int32"}), "\"int32\" is not one of"),
            (json!({"pattern": "(?=a)"}), "look-around"),
            (
                json!({"patternProperties": {"a(?!b)": true}}),
                "look-around",
            ),
            (json!({"type": "text"}), "`type`"),
            (json!({"type": []}), "`type`"),
            (json!({"minLength": -1}), "`minLength`"),
            (json!({"maximum": "10"}), "`maximum`"),
            (json!({"multipleOf": 0}), "`multipleOf`"),
            (json!({"multipleOf": 0.12345}), "5 significant digits"),
            (json!({"exclusiveMinimum": true}), "`exclusiveMinimum`"),
            (json!({"const": 9_007_199_254_740_994_u64}), "`const`"),
            (json!({"enum": []}), "`enum`"),
            (json!({"required": "a"}), "`required`"),
            (
                json!({"minProperties": 2, "required": []}),
                "`minProperties`",
            ),
            (json!({"properties": {"a\n": true}}), "control character"),
            (json!({"items": 3}), "neither an object nor a boolean"),
            (
                json!({"$schema": "http://json-schema.org/draft-04/schema#"}),
                "`$schema`",
            ),
            (
                json!({"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [true]}),
                "`prefixItems`",
            ),
            (json!(false), "false"),
            (json!("{}"), "neither an object nor a boolean"),
        ] {
            let error = error(&schema);
            assert!(error.contains(words), "{schema}: {error}");
        }
        let deep = (0..100).fold(json!({}), |schema, _| json!({"items": schema}));
        assert!(error(&deep).contains("deeper than 64"));
    }

    #[test]
    fn references_lead_to_schemas_inside() {
        for (schema, words) in [
            (json!({"$ref": "https://example.com/s"}), "outside"),
            (json!({"$ref": "other.json#/a"}), "outside"),
            (
                json!({"$ref": "#/$defs/b", "$defs": {"a": true}}),
                "leads to no schema",
            ),
            (
                json!({"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}),
                "leads to no schema",
            ),
            (
                json!({"enum": [{"a": 1}], "anyOf": [{"$ref": "#/enum/0"}]}),
                "leads to no schema",
            ),
            (json!({"$ref": "#"}), "leads back to itself"),
            (
                json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
                "leads back to itself",
            ),
        ] {
            let error = error(&schema);
            assert!(
                error.contains("`$ref`") && error.contains(words),
                "{schema}: {error}"
            );
        }
        let tree = json!({"properties": {"children": {"items": {"$ref": "#"}}}});
        assert!(prepare(&tree).is_ok());
    }

    #[test]
    fn annotations_pass_and_references_in_one_of_are_read_through() {
        let schema = json!({
            "title": "T", "$comment": "c", "default": {"not": 1}, "uniqueItems": false,
            "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b", "description": "d"}],
            "$defs": {"a": {"const": "a"}, "b": {"$ref": "#/$defs/c"}, "c": {"const": "c"}},
        });
        let prepared = prepare(&schema).expect("all is honoured");
        assert_eq!(prepared["oneOf"], json!([{"const": "a"}, {"const": "c"}]));
        assert_eq!(prepared.get("uniqueItems"), None);
        assert_eq!(prepared["default"], json!({"not": 1}));
    }
}
