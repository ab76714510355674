//! `sluice plugin test`: a plugin against worked numbers.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::outcome::{Outcome, ask, is_close};
use super::workbench::{Stages, Workbench};
use super::{AuthorError, read, vocabulary};
use crate::engine::TokenId;
use crate::plugin::{Choices, Kind, OpenChain, OpenError, Plugin, SequenceInfo};

/// Most tokens that a case's sequence may generate.
const MAX_TOKENS: u32 = 4096;
/// Widest row of a case.
const MAX_WIDTH: usize = 262_144;

/// What the help says of the cases' file.
pub(super) const FORMAT: &str = r#"CASES is a JSON list of objects:

  id                a name for the case
  params            the plugin's parameters [default: {}]
  prompt_tokens     ids [default: none]
  generated_tokens  ids, the newest last [default: none]
  logits            the model's row; "-inf" is a banned token. Its length is the
                    vocabulary's size
  tokens            each token's text [default: its id as a decimal number]
  end_ids           ids that end the sequence [default: none]
  seed              the request's seed [default: 0]

and at least one of what is expected:

  expected_logits   the row as the plugin leaves it, to 1e-5 of max(1, |x|)
  kept_ids          the ids that it leaves above negative infinity, ascending
  expected_token    what a sampler chooses, or the best token of the row that a
                    processor leaves
  expected_decision of a token processor: {"force": [ids]} or "stop"
  expected_error    `invalid_params` if it does not open, or a fault's kind,
                    such as `all_banned`

A token processor runs twice: told of all tokens at once, and one by one.

  [{"id": "a repeated token is halved", "params": {"penalty": 2},
    "generated_tokens": [1], "logits": [4, 4, "-inf"],
    "expected_logits": [4, 2, "-inf"]}]"#;

/// Which cases are run.
#[derive(Debug, clap::Args)]
pub struct TestArgs {
    /// A component, or a core module that carries its component type
    pub file: PathBuf,
    /// The cases
    pub cases: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    #[serde(default)]
    params: Map<String, Value>,
    #[serde(default)]
    prompt_tokens: Vec<TokenId>,
    #[serde(default)]
    generated_tokens: Vec<TokenId>,
    logits: Vec<Logit>,
    tokens: Option<Vec<String>>,
    #[serde(default)]
    end_ids: Vec<TokenId>,
    #[serde(default)]
    seed: i64,
    expected_logits: Option<Vec<Logit>>,
    kept_ids: Option<Vec<TokenId>>,
    expected_token: Option<TokenId>,
    expected_decision: Option<Decision>,
    expected_error: Option<String>,
}

/// JSON has no infinities.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum Logit {
    Finite(f32),
    Banned(Banned),
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Banned {
    #[serde(rename = "-inf")]
    Infinite,
}

impl Logit {
    fn value(self) -> f32 {
        match self {
            Self::Finite(value) => value,
            Self::Banned(Banned::Infinite) => f32::NEG_INFINITY,
        }
    }
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Decision {
    Force(Vec<TokenId>),
    Stop,
}

/// Runs all cases, with a line for each.
///
/// # Errors
/// When a file cannot be read or is not what it should be.
pub(super) fn run(args: &TestArgs) -> Result<bool, AuthorError> {
    let cases: Vec<Case> = serde_json::from_slice(&read(&args.cases)?)
        .map_err(|error| AuthorError::Usage(format!("{}: {error}", args.cases.display())))?;
    if cases.is_empty() {
        let message = format!("{} has no cases", args.cases.display());
        return Err(AuthorError::Usage(message));
    }
    let bench = Workbench::new()?;
    let plugin = bench.load(&read(&args.file)?)?;
    let mut n_failed = 0;
    for case in &cases {
        match case.check(&bench, &plugin) {
            Ok(()) => println!("ok      {}", case.id),
            Err(why) => {
                n_failed += 1;
                println!("failed  {}: {why}", case.id);
            }
        }
    }
    println!("{} of {} cases hold", cases.len() - n_failed, cases.len());
    Ok(n_failed == 0)
}

impl Case {
    /// Why the case does not hold.
    fn check(&self, bench: &Workbench, plugin: &Arc<Plugin>) -> Result<(), String> {
        self.check_itself(plugin.kind)?;
        let splits: &[bool] = if plugin.kind == Kind::TokenProcessor {
            &[true, false]
        } else {
            &[true]
        };
        for &at_once in splits {
            let how = if at_once { "" } else { ", told one by one" };
            let held = match self.open(bench, plugin) {
                Ok(chain) => self.compare(&self.ask(chain, at_once), plugin.kind),
                Err(AuthorError::Open(OpenError::Fault(fault))) => {
                    self.compare(&Outcome::Failed(fault), plugin.kind)
                }
                Err(error) if self.expected_error.as_deref() == Some("invalid_params") => {
                    drop(error);
                    Ok(())
                }
                Err(error) => Err(error.to_string()),
            };
            held.map_err(|why| format!("{why}{how}"))?;
        }
        Ok(())
    }

    /// What the case alone has wrong.
    fn check_itself(&self, kind: Kind) -> Result<(), String> {
        let width = self.logits.len();
        if width == 0 || width > MAX_WIDTH {
            return Err(format!("it has {width} logits, not 1 to {MAX_WIDTH}"));
        }
        let mut ids = self.prompt_tokens.iter().chain(&self.generated_tokens);
        if let Some(id) = ids.find(|&&id| id as usize >= width) {
            return Err(format!(
                "the token {id} is not below the row's width {width}"
            ));
        }
        if let Some(tokens) = self.tokens.as_ref().filter(|all| all.len() != width) {
            return Err(format!("{} tokens have a text, not {width}", tokens.len()));
        }
        let sees_row = self.expected_logits.is_some() || self.kept_ids.is_some();
        if sees_row && kind == Kind::Sampler {
            return Err("a sampler leaves no row; give expected_token".to_owned());
        }
        let expects = sees_row
            || self.expected_token.is_some()
            || self.expected_decision.is_some()
            || self.expected_error.is_some();
        if expects {
            Ok(())
        } else {
            Err("it expects nothing".to_owned())
        }
    }

    fn row(&self) -> Vec<f32> {
        self.logits.iter().map(|logit| logit.value()).collect()
    }

    fn open(&self, bench: &Workbench, plugin: &Arc<Plugin>) -> Result<OpenChain, AuthorError> {
        let width = self.logits.len() as u32;
        let vocabulary = vocabulary::of_case(width, self.tokens.as_deref(), &self.end_ids)?;
        let info = SequenceInfo {
            prompt: self.prompt_tokens.clone(),
            max_tokens: MAX_TOKENS,
            end_ids: self.end_ids.clone(),
        };
        let choices = Choices {
            n: 1,
            seed: self.seed,
            explain: false,
        };
        let stages: Stages = bench.chain(plugin, &self.params)?;
        let mut chains = bench.open(&vocabulary, &stages, &info, choices)?;
        Ok(chains.remove(0))
    }

    fn ask(&self, mut chain: OpenChain, at_once: bool) -> Outcome {
        let row = self.row();
        if at_once {
            return ask(&mut chain, &self.generated_tokens, &row);
        }
        let mut outcome = ask(&mut chain, &[], &row);
        for &token in &self.generated_tokens {
            if matches!(outcome, Outcome::Failed(_)) {
                break;
            }
            outcome = ask(&mut chain, &[token], &row);
        }
        outcome
    }

    fn compare(&self, outcome: &Outcome, kind: Kind) -> Result<(), String> {
        match outcome {
            Outcome::Failed(fault) => match &self.expected_error {
                Some(expected) if expected == fault.kind => Ok(()),
                Some(expected) => Err(format!(
                    "the error {expected} is expected, it fails with {}: {}",
                    fault.kind, fault.message
                )),
                None => Err(format!("it fails ({}): {}", fault.kind, fault.message)),
            },
            _ if self.expected_error.is_some() => Err("it does not fail".to_owned()),
            Outcome::Forced(tokens) => {
                self.compare_decision(Some(&Decision::Force(tokens.clone())))
            }
            Outcome::Stopped => self.compare_decision(Some(&Decision::Stop)),
            Outcome::Chose { row, token } => {
                self.compare_decision(None)?;
                if kind != Kind::Sampler {
                    self.compare_row(row)?;
                }
                match self.expected_token {
                    Some(expected) if expected != *token => {
                        Err(format!("the token is {token}, {expected} is expected"))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    fn compare_decision(&self, decision: Option<&Decision>) -> Result<(), String> {
        if self.expected_decision.as_ref() == decision {
            return Ok(());
        }
        let words = |decision: Option<&Decision>| match decision {
            Some(Decision::Force(tokens)) => format!("forces {tokens:?}"),
            Some(Decision::Stop) => "stops".to_owned(),
            None => "decides nothing".to_owned(),
        };
        Err(format!(
            "it {}; expected is that it {}",
            words(decision),
            words(self.expected_decision.as_ref())
        ))
    }

    fn compare_row(&self, row: &[f32]) -> Result<(), String> {
        if let Some(expected) = &self.expected_logits {
            let expected: Vec<_> = expected.iter().map(|logit| logit.value()).collect();
            if expected.len() != row.len() {
                return Err(format!(
                    "expected_logits has {} values, the row {}",
                    expected.len(),
                    row.len()
                ));
            }
            let mut pairs = row.iter().zip(&expected).enumerate();
            if let Some((id, (found, expected))) = pairs.find(|(_, (a, b))| !is_close(**b, **a)) {
                return Err(format!(
                    "the logit of token {id} is {found}, {expected} is expected"
                ));
            }
        }
        if let Some(expected) = &self.kept_ids {
            let all = (0..).zip(row);
            let kept: Vec<TokenId> = all
                .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
                .map(|(id, _)| id)
                .collect();
            if kept != *expected {
                return Err(format!("{kept:?} are kept, {expected:?} is expected"));
            }
        }
        Ok(())
    }
}
