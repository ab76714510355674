//! The JSON Schema of a plugin's parameters, derived from their type.

use schemars::{JsonSchema, Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::Value;

/// The schema (draft 2020-12) that a component publishes for parameters of this
/// type: what `schemars` derives, without references and titles, and with the
/// bounds of each number's type, so that no value becomes an infinity or fails
/// only when a sequence opens.
///
/// ```
/// use sluice_plugin::schemars::{self, JsonSchema};
///
/// #[derive(JsonSchema, serde::Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Params {
///     /// How often a token may be generated.
///     #[schemars(range(min = 1))]
///     times: u32,
/// }
///
/// let schema = serde_json::json!({
///     "type": "object",
///     "properties": {
///         "times": {
///             "description": "How often a token may be generated.",
///             "type": "integer", "minimum": 1, "maximum": 4_294_967_295_u32
///         }
///     },
///     "required": ["times"],
///     "additionalProperties": false
/// });
/// assert_eq!(sluice_plugin::schema::<Params>(), schema);
/// ```
pub fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let generator = settings
        .with_transform(RecursiveTransform(tidy))
        .into_generator();
    finish(generator.into_root_schema_for::<T>(), &T::schema_name())
}

/// Apart from [`schema`], so that it is compiled once for all types.
fn finish(mut schema: Schema, name: &str) -> Value {
    if schema.get("title").and_then(Value::as_str) == Some(name) {
        schema.remove("title");
    }
    schema.into()
}

/// Says in bounds what `format` says of numbers, which no validator reads.
fn tidy(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    let format = schema.get("format").and_then(Value::as_str);
    let (least, most): (Value, Value) = match format {
        // The size of a component's pointers.
        Some("uint32" | "uint") => (0.into(), u32::MAX.into()),
        Some("uint64") => (0.into(), u64::MAX.into()),
        Some("int32" | "int") => (i32::MIN.into(), i32::MAX.into()),
        Some("int64") => (i64::MIN.into(), i64::MAX.into()),
        Some("float") => (f64::from(f32::MIN).into(), f64::from(f32::MAX).into()),
        // They have bounds already, or none.
        Some("uint8" | "uint16" | "int8" | "int16" | "double") => (Value::Null, Value::Null),
        _ => return,
    };
    let is_f32 = format == Some("float");
    schema.remove("format");
    bound(schema, ["minimum", "exclusiveMinimum"], least);
    bound(schema, ["maximum", "exclusiveMaximum"], most);
    if is_f32 && let Some(default) = schema.get_mut("default") {
        shorten(default);
    }
}

/// Adds the bound of the type where there is none.
fn bound(schema: &mut Schema, keywords: [&str; 2], value: Value) {
    if !value.is_null()
        && keywords
            .iter()
            .all(|keyword| schema.get(*keyword).is_none())
    {
        schema.insert(keywords[0].to_owned(), value);
    }
}

/// 0.9 for the f32 that is nearest to it, not 0.8999999761581421. By
/// arithmetic: a parser of decimals would weigh more than the rest.
#[allow(clippy::float_cmp, reason = "the very same number, or not")]
fn shorten(default: &mut Value) {
    const PLACES: f64 = 1e6;
    if let Some(wide) = default.as_f64() {
        let short = (wide * PLACES).round() / PLACES;
        if short as f32 == wide as f32 {
            *default = short.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;

    /// How it is done.
    #[derive(Default, Deserialize, Serialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        #[default]
        Fast,
        Slow,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct Params {
        share: f32,
        #[schemars(range(min = 0, max = 1))]
        exact: f64,
        #[schemars(extend("exclusiveMinimum" = 0))]
        size: usize,
        mode: Mode,
        #[schemars(range(max = 100))]
        maybe: Option<i32>,
        ids: Vec<u32>,
    }

    impl Default for Params {
        fn default() -> Self {
            Self {
                share: 0.9,
                exact: 0.1,
                size: 3,
                mode: Mode::Slow,
                maybe: None,
                ids: Vec::new(),
            }
        }
    }

    #[test]
    fn numbers_have_the_bounds_of_their_types_and_defaults_are_short() {
        let most = 3.402_823_466_385_288_6e38;
        assert_eq!(
            schema::<Params>(),
            json!({
                "type": "object",
                "properties": {
                    "share": {"type": "number", "minimum": -most, "maximum": most, "default": 0.9},
                    "exact": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.1},
                    "size": {
                        "type": "integer", "exclusiveMinimum": 0, "minimum": 0,
                        "maximum": 4_294_967_295_u32, "default": 3,
                    },
                    "mode": {
                        "description": "How it is done.", "type": "string",
                        "enum": ["fast", "slow"], "default": "slow",
                    },
                    "maybe": {
                        "type": ["integer", "null"], "minimum": -2_147_483_648_i64, "maximum": 100,
                    },
                    "ids": {
                        "type": "array",
                        "items": {"type": "integer", "minimum": 0, "maximum": 4_294_967_295_u32},
                        "default": [],
                    },
                },
                "additionalProperties": false,
            })
        );
    }

    /// A schema that no derive writes.
    struct Exotic;

    impl JsonSchema for Exotic {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "Exotic".into()
        }

        fn json_schema(_: &mut schemars::SchemaGenerator) -> Schema {
            schemars::json_schema!({"title": "Kept", "type": ["object", "null"], "minProperties": 1})
        }
    }

    #[test]
    fn what_is_written_by_hand_stays_as_it_is() {
        let written = json!({"title": "Kept", "type": ["object", "null"], "minProperties": 1});
        assert_eq!(schema::<Exotic>(), written);
    }
}
