//! What a text must follow, as the request says it.

use std::fmt::Display;

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::Grammar;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::{ParserFactory, regex_to_lark};
use serde::Deserialize;
use serde_json::Value;

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
