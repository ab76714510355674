//! The fields of a request, sorted by the table and read by type.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::errors::{ApiError, Code, shown};
use super::field_table::{DefaultStage, Endpoint, Meaning, fields_of, find, stage_of};

/// A field that the request gives, null excepted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Given {
    /// Its name in this project.
    pub(super) name: &'static str,
    /// The name the client used, for errors.
    pub(super) sent_as: &'static str,
    pub(super) value: Value,
}

impl Given {
    /// The error that the value is not what the field expects.
    pub(super) fn invalid(&self, expected: impl std::fmt::Display) -> ApiError {
        ApiError::invalid(self.sent_as, &self.value, expected)
    }
}

/// The fields of one request that have a meaning, in the client's order.
#[derive(Debug)]
pub(super) struct Fields {
    given: Vec<Given>,
    ignored: Vec<&'static str>,
}

impl Fields {
    /// Sorts a body's fields by the table. A null field is as absent.
    ///
    /// # Errors
    /// Unknown fields, unsupported values, and a name beside its alias with a
    /// different value.
    pub(super) fn admit(body: Map<String, Value>, endpoint: Endpoint) -> Result<Self, ApiError> {
        let mut fields = Self {
            given: Vec::new(),
            ignored: Vec::new(),
        };
        for (key, value) in body {
            if value.is_null() {
                continue;
            }
            let sent = find(&key, endpoint).ok_or_else(|| unknown(&key, endpoint))?;
            let canonical = match sent.meaning {
                Meaning::Alias(name) => {
                    find(name, endpoint).ok_or_else(|| unknown(name, endpoint))?
                }
                _ => sent,
            };
            let given = Given {
                name: canonical.name,
                sent_as: sent.name,
                value,
            };
            match canonical.meaning {
                Meaning::Ignored => fields.ignored.push(sent.name),
                Meaning::Only(neutral) => check_neutral(&given, neutral)?,
                Meaning::Read | Meaning::Stage(_) | Meaning::Alias(_) => fields.insert(given)?,
            }
        }
        Ok(fields)
    }

    fn insert(&mut self, given: Given) -> Result<(), ApiError> {
        match self.given.iter().find(|other| other.name == given.name) {
            Some(other) if same(&other.value, &given.value) => Ok(()),
            Some(other) => Err(ApiError::of(
                Code::ConflictingFields,
                given.sent_as,
                format!(
                    "`{}` is {} but `{}`, which means the same, is {}",
                    given.sent_as,
                    shown(&given.value),
                    other.sent_as,
                    shown(&other.value)
                ),
            )),
            None => {
                self.given.push(given);
                Ok(())
            }
        }
    }

    /// Names of the fields that cannot change a token, once every other field
    /// has been taken.
    ///
    /// # Errors
    /// A field that nobody took would be silently ignored.
    pub(super) fn finish(self) -> Result<Vec<&'static str>, ApiError> {
        match self.given.first() {
            None => Ok(self.ignored),
            Some(given) => {
                let message = format!("the server forgot to read `{}`", given.sent_as);
                Err(ApiError::of(Code::InternalError, given.sent_as, message))
            }
        }
    }

    /// Removes a field.
    pub(super) fn take(&mut self, name: &str) -> Option<Given> {
        let index = self.given.iter().position(|given| given.name == name)?;
        Some(self.given.remove(index))
    }

    /// Reads a field and leaves it there.
    pub(super) fn get(&self, name: &str) -> Option<&Given> {
        self.given.iter().find(|given| given.name == name)
    }

    /// Gives a field that the request leaves out, or that was taken.
    pub(super) fn put(&mut self, given: Given) {
        if self.get(given.name).is_none() {
            self.given.push(given);
        }
    }

    /// Removes a field that must be there.
    pub(super) fn required(&mut self, name: &'static str) -> Result<Given, ApiError> {
        self.take(name)
            .ok_or_else(|| ApiError::of(Code::MissingField, name, format!("`{name}` is required")))
    }

    /// Removes a boolean.
    pub(super) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        let Some(given) = self.take(name) else {
            return Ok(None);
        };
        given
            .value
            .as_bool()
            .map(Some)
            .ok_or_else(|| given.invalid("true or false"))
    }

    /// Removes an integer in `range`.
    pub(super) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i128>,
    ) -> Result<Option<i128>, ApiError> {
        let Some(given) = self.take(name) else {
            return Ok(None);
        };
        integer_in(&given, range).map(Some)
    }

    /// Removes the parameters of the default chain's stages, in the client's
    /// order.
    pub(super) fn take_stage_fields(&mut self) -> Vec<(DefaultStage, Given)> {
        let (stages, others) = std::mem::take(&mut self.given)
            .into_iter()
            .partition(|given| stage_of(given.name).is_some());
        self.given = others;
        let stages: Vec<Given> = stages;
        stages
            .into_iter()
            .filter_map(|given| Some((stage_of(given.name)?, given)))
            .collect()
    }
}

/// A given integer within `range`; 5.0 is one.
fn integer_in(given: &Given, range: RangeInclusive<i128>) -> Result<i128, ApiError> {
    as_integer(&given.value)
        .filter(|value| range.contains(value))
        .ok_or_else(|| {
            let (start, end) = (range.start(), range.end());
            if *end == i128::MAX {
                given.invalid(format_args!("an integer of at least {start}"))
            } else {
                given.invalid(format_args!("an integer from {start} to {end}"))
            }
        })
}

/// The integer a JSON number stands for, whether written `5` or `5.0`.
pub(super) fn as_integer(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    number.as_i128().or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0).then_some(float as i128)
    })
}

fn check_neutral(given: &Given, neutral: &[&str]) -> Result<(), ApiError> {
    let accepted = neutral.iter().any(|text| {
        serde_json::from_str(text).is_ok_and(|value: Value| same(&value, &given.value))
    });
    if accepted {
        return Ok(());
    }
    let name = given.sent_as;
    let value = shown(&given.value);
    let message = if neutral.is_empty() {
        format!("`{name}` is not supported: leave it out")
    } else {
        format!(
            "`{name}` is {value}; only {} is supported",
            neutral.join(" or ")
        )
    };
    Err(ApiError::of(Code::UnsupportedField, name, message))
}

/// Equality in which 1 is 1.0.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a))
}

fn unknown(key: &str, endpoint: Endpoint) -> ApiError {
    let shown_key = shown(&Value::from(key));
    let nearest = fields_of(endpoint)
        .map(|field| {
            (
                strsim::normalized_damerau_levenshtein(cut(key), field.name),
                field.name,
            )
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness >= 0.5);
    let message = match nearest {
        Some((_, name)) => format!("there is no field {shown_key}; did you mean `{name}`?"),
        None => format!("there is no field {shown_key}"),
    };
    ApiError::of(Code::UnknownField, cut(key), message)
}

/// A client's key as an error names it: longer ones are nobody's misspelling, and
/// distances are quadratic.
pub(super) fn cut(key: &str) -> &str {
    const LONGEST: usize = 64;
    key.char_indices()
        .nth(LONGEST)
        .map_or(key, |(end, _)| &key[..end])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn admit(body: Value) -> Result<Fields, ApiError> {
        let Value::Object(body) = body else {
            panic!("not an object: {body}")
        };
        Fields::admit(body, Endpoint::Chat)
    }

    #[test]
    fn null_is_as_absent_for_every_name() {
        let mut body: Map<String, Value> = fields_of(Endpoint::Chat)
            .map(|field| (field.name.to_owned(), Value::Null))
            .collect();
        body.insert("no_such_field".into(), Value::Null);
        let fields = Fields::admit(body, Endpoint::Chat).unwrap();
        assert_eq!(fields.given, []);
        assert!(fields.finish().unwrap().is_empty());
    }

    #[test]
    fn unknown_fields_name_their_nearest() {
        let error = admit(json!({"temprature": 1})).unwrap_err();
        assert_eq!(error.code, Code::UnknownField);
        assert_eq!(error.param.as_deref(), Some("temprature"));
        assert_eq!(
            error.message,
            "there is no field \"temprature\"; did you mean `temperature`?"
        );

        let error = admit(json!({"qqqqqqqqqqqq": 1})).unwrap_err();
        assert_eq!(error.message, "there is no field \"qqqqqqqqqqqq\"");

        let error = admit(json!({"x".repeat(1_000_000): 1})).unwrap_err();
        assert_eq!(error.param.map(|param| param.len()), Some(64));
        assert!(error.message.len() < 200);
    }

    #[test]
    fn a_field_of_the_other_endpoint_is_unknown() {
        assert_eq!(
            admit(json!({"prompt": "a"})).unwrap_err().code,
            Code::UnknownField
        );
        let body = Map::from_iter([("messages".to_owned(), json!([]))]);
        let error = Fields::admit(body, Endpoint::Completions).unwrap_err();
        assert_eq!(error.code, Code::UnknownField);
    }

    #[test]
    fn aliases_agree_or_conflict() {
        let mut fields = admit(json!({"max_completion_tokens": 5, "max_tokens": 5.0})).unwrap();
        assert_eq!(fields.integer("max_tokens", 1..=100).unwrap(), Some(5));

        let mut fields = admit(json!({"repeat_penalty": 1.1})).unwrap();
        let given = fields.take("repetition_penalty").unwrap();
        assert_eq!((given.sent_as, given.value), ("repeat_penalty", json!(1.1)));

        let error = admit(json!({"max_tokens": 5, "n_predict": 6})).unwrap_err();
        assert_eq!(
            (error.code, error.param.as_deref()),
            (Code::ConflictingFields, Some("n_predict"))
        );
        assert!(
            error.message.contains('5') && error.message.contains('6'),
            "{}",
            error.message
        );
    }

    #[test]
    fn neutral_values_are_accepted_and_others_refused() {
        admit(json!({
            "modalities": ["text"], "function_call": "none", "length_penalty": 1.0,
            "skip_special_tokens": true,
        }))
        .unwrap();
        for body in [
            json!({"length_penalty": 1.5}),
            json!({"use_beam_search": true}),
        ] {
            let error = admit(body.clone()).unwrap_err();
            assert_eq!(error.code, Code::UnsupportedField, "{body}");
            assert_eq!(
                error.param.as_deref(),
                body.as_object().unwrap().keys().next().map(String::as_str)
            );
        }
    }

    #[test]
    fn ignored_fields_are_named() {
        let fields = admit(json!({"user": "u", "metadata": {"a": "b"}, "store": null})).unwrap();
        assert_eq!(fields.finish().unwrap(), ["user", "metadata"]);
    }

    #[test]
    fn integers_are_judged_by_value() {
        let read = |value: Value, range| admit(json!({"n": value})).unwrap().integer("n", range);
        let wide = i128::from(i64::MIN)..=i128::from(i64::MAX);
        assert_eq!(read(json!(5.0), 1..=8).unwrap(), Some(5));
        assert_eq!(
            read(json!(i64::MIN), wide.clone()).unwrap(),
            Some(i128::from(i64::MIN))
        );
        assert_eq!(read(json!(null), 1..=8).unwrap(), None);
        for value in [
            json!(0),
            json!(9),
            json!(1.5),
            json!("5"),
            json!(true),
            json!([]),
            json!(1e300),
        ] {
            let error = read(value.clone(), 1..=8).unwrap_err();
            assert_eq!(error.code, Code::InvalidValue, "{value}");
            assert!(
                error.message.ends_with("an integer from 1 to 8"),
                "{}",
                error.message
            );
        }
        assert!(read(json!(9_223_372_036_854_775_808_u64), wide).is_err());
    }
}
