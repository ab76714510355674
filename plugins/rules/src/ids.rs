//! Ids given by a request.

use sluice_plugin::TokenId;

/// Refuses an id that the vocabulary does not have.
pub(crate) fn within(field: &str, ids: &[TokenId], vocabulary_size: u32) -> Result<(), String> {
    match ids.iter().find(|&&id| id >= vocabulary_size) {
        Some(id) => Err(outside(field, &id.to_string(), vocabulary_size)),
        None => Ok(()),
    }
}

pub(crate) fn outside(field: &str, id: &str, vocabulary_size: u32) -> String {
    format!(
        "{field}: token id {id} is outside the vocabulary (0 to {})",
        vocabulary_size - 1
    )
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn the_first_id_outside_is_named() {
        assert_eq!(within("bad_words", &[0, 7], 8), Ok(()));
        assert_eq!(
            within("bad_words", &[7, 8, 9], 8),
            Err("bad_words: token id 8 is outside the vocabulary (0 to 7)".into())
        );
    }
}
