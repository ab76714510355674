//! `sluice plugin diff`: two versions of a plugin in the same contexts.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::outcome::{Outcome, ask};
use super::random::Random;
use super::workbench::{Workbench, parse_params};
use super::{AuthorError, read, vocabulary};
use crate::engine::TokenId;
use crate::plugin::{Choices, Kind, OpenChain, SequenceInfo};

const WIDTH: u32 = 1024;
const N_CONTEXTS: u64 = 8;
const PROMPT: usize = 16;
const LENGTH: u32 = 48;

/// What is compared.
#[derive(Debug, clap::Args)]
pub struct DiffArgs {
    /// One version, whose tokens both are told of
    pub a: PathBuf,
    /// The other
    pub b: PathBuf,
    /// Parameters of both, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parse_params)]
    pub params: Map<String, Value>,
    /// Other contexts and rows
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// Prints the first position of each context at which they differ.
///
/// # Errors
/// When one cannot be run, or they are of two kinds.
pub(super) fn run(args: &DiffArgs) -> Result<bool, AuthorError> {
    let bench = Workbench::new()?;
    let [a, b] = [&args.a, &args.b].map(|file| bench.load(&read(file)?));
    let (a, b) = (a?, b?);
    if a.kind != b.kind {
        let message = format!("{} is a {}, {} a {}", a.name, a.kind, b.name, b.kind);
        return Err(AuthorError::Usage(message));
    }
    let vocabulary = vocabulary::of_text(WIDTH)?;
    let stages = [
        bench.chain(&a, &args.params)?,
        bench.chain(&b, &args.params)?,
    ];
    let (mut n_differ, mut are_idle) = (0, a.kind != Kind::Sampler);
    for context in 0..N_CONTEXTS {
        let mut random = Random::new(args.seed, context);
        let info = SequenceInfo {
            prompt: random.tokens(PROMPT, vocabulary::end_of(WIDTH)),
            max_tokens: LENGTH,
            end_ids: vec![vocabulary::end_of(WIDTH)],
        };
        let choices = Choices {
            n: 1,
            seed: context as i64,
            explain: false,
        };
        let open = |stages| bench.open(&vocabulary, stages, &info, choices);
        let (mut a_chain, mut b_chain) = (open(&stages[0])?, open(&stages[1])?);
        let pair = [a_chain.remove(0), b_chain.remove(0)];
        let text = Text::follow(pair, &mut random, |x, y| x.difference(y, a.kind));
        are_idle &= text.is_idle;
        if let Some(difference) = text.difference {
            n_differ += 1;
            println!(
                "context {context}, after {:?}: {difference}",
                last(&text.tokens)
            );
        }
    }
    if are_idle {
        println!(
            "note: with these params neither did anything at any position, neither an edit nor a \
             decision; give others with --params"
        );
    }
    println!("{n_differ} of {N_CONTEXTS} contexts differ, up to {LENGTH} tokens each");
    Ok(n_differ == 0)
}

/// The end of a context, enough to find it again.
fn last(tokens: &[TokenId]) -> &[TokenId] {
    &tokens[tokens.len().saturating_sub(8)..]
}

/// What the first of a pair wrote until the second did something else.
struct Text {
    tokens: Vec<TokenId>,
    difference: Option<String>,
    /// Nothing was done at any position.
    is_idle: bool,
}

impl Text {
    fn follow(
        mut pair: [OpenChain; 2],
        random: &mut Random,
        difference: impl Fn(&Outcome, &Outcome) -> Option<String>,
    ) -> Self {
        let mut text = Self {
            tokens: Vec::new(),
            difference: None,
            is_idle: true,
        };
        let mut told = 0;
        while text.tokens.len() < LENGTH as usize {
            let row = random.row(WIDTH as usize);
            let [a, b] = pair
                .each_mut()
                .map(|chain| ask(chain, &text.tokens[told..], &row));
            told = text.tokens.len();
            text.difference = difference(&a, &b);
            let visible = &row[..=vocabulary::end_of(WIDTH) as usize];
            text.is_idle &= a.leaves(visible) && b.leaves(visible);
            if text.difference.is_some() {
                break;
            }
            match a {
                Outcome::Chose { token, .. } => text.tokens.push(token),
                Outcome::Forced(tokens) => text.tokens.extend(tokens),
                Outcome::Stopped | Outcome::Failed(_) => break,
            }
        }
        text
    }
}
