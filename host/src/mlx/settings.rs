//! Reading a model's configuration, key by key, so that a wrong value is named.

use serde_json::{Map, Value};

use super::LoadError;

/// The largest count a configuration may name: MLX counts in i32.
const MAX_COUNT: u64 = i32::MAX as u64;

/// A configuration under Hugging Face's names.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Settings<'a> {
    /// The value of `key`; `null` is as absent.
    pub(super) fn get(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// A positive integer.
    pub(super) fn count(self, key: &str) -> Result<usize, LoadError> {
        self.optional_count(key)?
            .ok_or_else(|| Self::wrong(key, &"absent", "it is needed"))
    }

    pub(super) fn optional_count(self, key: &str) -> Result<Option<usize>, LoadError> {
        self.get(key)
            .map(|value| {
                value
                    .as_u64()
                    .filter(|count| (1..=MAX_COUNT).contains(count))
                    .map(|count| count as usize)
                    .ok_or_else(|| Self::wrong(key, value, "it must be a positive integer"))
            })
            .transpose()
    }

    /// A positive finite number.
    pub(super) fn optional_number(self, key: &str) -> Result<Option<f64>, LoadError> {
        self.get(key)
            .map(|value| {
                value
                    .as_f64()
                    .filter(|number| *number > 0.0 && number.is_finite())
                    .ok_or_else(|| Self::wrong(key, value, "it must be a positive number"))
            })
            .transpose()
    }

    pub(super) fn number(self, key: &str) -> Result<f64, LoadError> {
        self.optional_number(key)?
            .ok_or_else(|| Self::wrong(key, &"absent", "it is needed"))
    }

    /// A truth value, false where the key is absent.
    pub(super) fn flag(self, key: &str) -> Result<bool, LoadError> {
        self.get(key).map_or(Ok(false), |value| {
            value
                .as_bool()
                .ok_or_else(|| Self::wrong(key, value, "it must be true or false"))
        })
    }

    pub(super) fn text(self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(Value::as_str)
    }

    /// A list of texts.
    pub(super) fn texts(self, key: &str) -> Result<Option<Vec<&'a str>>, LoadError> {
        self.get(key)
            .map(|value| {
                let texts = value.as_array();
                texts
                    .and_then(|texts| texts.iter().map(Value::as_str).collect())
                    .ok_or_else(|| Self::wrong(key, value, "it must be a list of texts"))
            })
            .transpose()
    }

    pub(super) fn table(self, key: &str) -> Result<Option<Settings<'a>>, LoadError> {
        self.get(key)
            .map(|value| {
                value
                    .as_object()
                    .map(Settings)
                    .ok_or_else(|| Self::wrong(key, value, "it must be a table"))
            })
            .transpose()
    }

    /// Refuses a setting that asks for what the family does not compute.
    pub(super) fn refuse_flag(self, key: &str) -> Result<(), LoadError> {
        if self.flag(key)? {
            return Err(Self::wrong(key, &true, "only false is supported"));
        }
        Ok(())
    }

    pub(super) fn wrong(key: &str, found: &dyn ToString, expected: &str) -> LoadError {
        LoadError::Setting {
            setting: key.to_owned(),
            found: found.to_string(),
            expected: expected.to_owned(),
        }
    }
}
