//! `tokenizer_config.json`, the part of it that concerns text.

use serde::Deserialize;

use super::TokenizerError;

/// What a Hugging Face folder says beside its `tokenizer.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// The name of the token a text begins with.
    pub bos_token: Option<String>,
    /// The name of the token a text ends with.
    pub eos_token: Option<String>,
    /// Absent where the folder has `chat_template.jinja` instead, or none.
    pub chat_template: Option<String>,
}

#[derive(Deserialize)]
struct File {
    bos_token: Option<Name>,
    eos_token: Option<Name>,
    chat_template: Option<Templates>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Token { content: String },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl TokenizerConfig {
    /// Reads the file. Of several named templates the one called `default`
    /// is taken.
    ///
    /// # Errors
    /// Not such a file.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let file: File = serde_json::from_slice(json)
            .map_err(|error| TokenizerError::Invalid(format!("tokenizer_config.json: {error}")))?;
        Ok(Self {
            bos_token: file.bos_token.map(Name::into_text),
            eos_token: file.eos_token.map(Name::into_text),
            chat_template: file.chat_template.and_then(Templates::into_default),
        })
    }
}

impl Name {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Token { content } => content,
        }
    }
}

impl Templates {
    fn into_default(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(templates) => templates
                .into_iter()
                .find(|named| named.name == "default")
                .map(|named| named.template),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_ways_of_writing_each_field() {
        let plain = br#"{"bos_token": "<s>", "eos_token": null, "chat_template": "x", "more": 1}"#;
        let config = TokenizerConfig::from_json(plain).unwrap();
        assert_eq!(config.bos_token.as_deref(), Some("<s>"));
        assert_eq!(config.eos_token, None);
        assert_eq!(config.chat_template.as_deref(), Some("x"));
        let nested = br#"{"eos_token": {"content": "</s>", "lstrip": false},
            "chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#;
        let config = TokenizerConfig::from_json(nested).unwrap();
        assert_eq!(config.eos_token.as_deref(), Some("</s>"));
        assert_eq!(config.chat_template.as_deref(), Some("d"));
    }

    #[test]
    fn says_which_file_is_wrong() {
        let error = TokenizerConfig::from_json(br#"{"bos_token": 3}"#).unwrap_err();
        assert!(
            error.to_string().contains("tokenizer_config.json"),
            "{error}"
        );
    }
}
