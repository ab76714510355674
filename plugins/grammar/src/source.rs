//! What a text must follow, as the request says it.

use std::borrow::Cow;
use std::fmt::Display;

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::Grammar;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::{ParserFactory, regex_to_lark};
use serde::Deserialize;
use serde_json::Value;
use sluice_plugin::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{lark, pattern, schema};

/// The parameters: the host's check of the schema lets exactly one through.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Source {
    JsonSchema(Value),
    Regex(String),
    Choice(Vec<String>),
    Lark(String),
}

/// Written by hand: an object of one member shows better as four optional ones
/// than as four alternatives.
impl JsonSchema for Source {
    fn schema_name() -> Cow<'static, str> {
        "Source".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let text = |description: &str| json_schema!({ "description": description, "type": "string", "minLength": 1 });
        json_schema!({
            "type": "object",
            "properties": {
                "json_schema": {
                    "description": "The text is JSON that fits this JSON Schema, on one line, with \
                        one space after each comma and colon between members; members in the order \
                        of `properties`.",
                    "type": ["object", "boolean"],
                },
                "regex": text(
                    "The whole text matches this regular expression, in the syntax of the Rust \
                     crate regex; \\d and \\w are ASCII. No look-around, no word boundaries, no back \
                     references.",
                ),
                "choice": {
                    "description": "The text is one of these.",
                    "type": "array",
                    "items": { "type": "string", "minLength": 1 },
                    "minItems": 1,
                },
                "lark": text(
                    "The text fits this grammar, in the variant of Lark's syntax that llguidance \
                     reads, without %json, references to other grammars, special tokens and the \
                     attributes stop, max_tokens and temperature.",
                ),
            },
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": false,
        })
    }
}

impl Source {
    fn name(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "json_schema",
            Self::Regex(_) => "regex",
            Self::Choice(_) => "choice",
            Self::Lark(_) => "lark",
        }
    }

    /// The engine's grammar.
    ///
    /// # Errors
    /// What cannot be honoured.
    pub(crate) fn compile(&self, factory: &ParserFactory) -> Result<(Grammar, LexerSpec), String> {
        let grammar = self.grammar().map_err(|error| self.refusal(&error))?;
        let environment = Some(factory.tok_env().clone());
        let (grammar, lexer) = GrammarInit::Serialized(grammar)
            .to_internal(environment, factory.limits().clone())
            .map_err(|error| self.refusal(&error))?;
        if let Self::Lark(_) = self {
            lark::check_compiled(&lexer).map_err(|error| self.refusal(&error))?;
        }
        // The engine warns of what it leaves out.
        match lexer.render_warnings().first() {
            Some(warning) => Err(self.refusal(warning)),
            None => Ok((grammar, lexer)),
        }
    }

    fn grammar(&self) -> Result<TopLevelGrammar, String> {
        match self {
            Self::JsonSchema(schema) => {
                schema::prepare(schema).map(TopLevelGrammar::from_json_schema)
            }
            Self::Regex(regex) => {
                pattern::check(regex)?;
                Ok(whole_text(&regex_to_lark(regex, pattern::ASCII)))
            }
            Self::Choice(choices) => {
                let choices: Vec<_> = choices
                    .iter()
                    .map(|text| regex_syntax::escape(text))
                    .collect();
                Ok(whole_text(&regex_to_lark(&choices.join("|"), "")))
            }
            Self::Lark(grammar) => {
                lark::check_text(grammar)?;
                Ok(TopLevelGrammar::from_lark(grammar.clone()))
            }
        }
    }

    /// An error of the engine as this parameter's.
    pub(crate) fn refusal(&self, error: &impl Display) -> String {
        let error = error.to_string();
        let error = error.trim_end_matches("<non-verbose/>").trim();
        let error = match self {
            Self::JsonSchema(_) => schema::explain(error),
            _ => error.to_owned(),
        };
        format!("{}: {error}", self.name())
    }
}

/// A regular expression, quoted for Lark, that the whole text must match.
fn whole_text(regex: &str) -> TopLevelGrammar {
    TopLevelGrammar::from_lark(format!("start: /(?:{regex})/"))
}
