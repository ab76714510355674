//! `l += b`, by decimal id.

use std::collections::BTreeMap;

use sluice_plugin::{
    TokenId,
    schemars::{Schema, SchemaGenerator, json_schema},
};

use crate::ids;

/// A map of decimal ids.
pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "propertyNames": { "pattern": "^(0|[1-9][0-9]{0,9})$" },
        "additionalProperties": { "type": "number", "minimum": -100, "maximum": 100 },
    })
}

/// Ids and what to add to each. Only the canonical decimal form of an id is
/// one: neither `01` nor `+1`.
pub(crate) fn parse(
    biases: &BTreeMap<String, f32>,
    vocabulary_size: u32,
) -> Result<(Vec<TokenId>, Vec<f32>), String> {
    let mut parsed = (Vec::new(), Vec::new());
    for (key, &bias) in biases {
        let digits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || (key.len() > 1 && key.starts_with('0')) {
            return Err(format!("logit_bias: `{key}` is not a decimal token id"));
        }
        match key.parse() {
            Ok(id) if id < vocabulary_size => parsed.0.push(id),
            _ => return Err(ids::outside("logit_bias", key, vocabulary_size)),
        }
        parsed.1.push(bias);
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::{BTreeMap, parse};

    fn keys(keys: &[&str]) -> BTreeMap<String, f32> {
        keys.iter().map(|&key| (key.to_owned(), 0.5)).collect()
    }

    #[test]
    fn canonical_ids_inside_the_vocabulary() {
        assert_eq!(
            parse(&keys(&["0", "7"]), 8),
            Ok((vec![0, 7], vec![0.5, 0.5]))
        );
        assert_eq!(parse(&keys(&[]), 8), Ok((vec![], vec![])));
    }

    #[test]
    fn other_spellings_of_an_id_are_refused() {
        for key in ["01", "+1", "-1", " 1", "1.0", "AI", "", "00"] {
            let expected = format!("logit_bias: `{key}` is not a decimal token id");
            assert_eq!(parse(&keys(&[key]), 8), Err(expected));
        }
    }

    #[test]
    fn ids_past_the_vocabulary_are_refused() {
        for key in ["8", "4294967296", "99999999999999999999999"] {
            let expected = format!("logit_bias: token id {key} is outside the vocabulary (0 to 7)");
            assert_eq!(parse(&keys(&[key]), 8), Err(expected));
        }
    }
}
