//! Runs a plugin as ordinary Rust, under `cargo test`.
//!
//! Outside a component the functions that reach the host ([`edits`],
//! [`control`], [`logits`], [`random`], [`vocabulary`], [`log`]) work in the
//! calls that this module makes: it takes the host's place. Edits, chance and
//! cases are the server's own code, so a plugin does here what it does as a
//! component, but for its limits: nothing ends a call that takes too long or
//! too much memory.
//!
//! The same worked cases hold natively and, by `sluice plugin test`, in the
//! component:
//!
//! ```no_run
//! # use sluice_plugin::{Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor};
//! # struct Mine;
//! # impl Plugin for Mine {
//! #     type Params = ();
//! #     fn describe() -> Description { Description { name: "mine", version: "0.1.0", summary: "." } }
//! #     fn open((): (), _: SequenceInfo) -> Result<Self, OpenError> { Ok(Self) }
//! # }
//! # impl TokenProcessor for Mine {
//! #     fn plan(&mut self, _: &[TokenId]) -> Result<(), String> { Ok(()) }
//! # }
//! # sluice_plugin::export!(TokenProcessor for Mine);
//! # const CASES: &str = "[]";
//! // In a test, with CASES for `include_str!("../cases.json")`:
//! sluice_plugin::testing::cases::<Mine>(CASES);
//! ```
//!
//! One sequence, step by step:
//!
//! ```
//! # use sluice_plugin::{Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits};
//! use sluice_plugin::testing::{Outcome, Setup};
//!
//! /// Bans the token that came last.
//! struct NoEcho;
//!
//! # impl Plugin for NoEcho {
//! #     type Params = ();
//! #     fn describe() -> Description { Description { name: "no-echo", version: "0.1.0", summary: "." } }
//! #     fn open((): (), _: SequenceInfo) -> Result<Self, OpenError> { Ok(Self) }
//! # }
//! impl TokenProcessor for NoEcho {
//!     fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
//!         edits::deny(accepted);
//!         Ok(())
//!     }
//! }
//! sluice_plugin::export!(TokenProcessor for NoEcho);
//!
//! let mut sequence = Setup::of_texts(["a", "b", "c"]).params("null").open::<NoEcho>()?;
//! let row = vec![1.0, f32::NEG_INFINITY, 3.0];
//! let outcome = sequence.step(&[1], &[1.0, 2.0, 3.0]);
//! assert_eq!(outcome, Outcome::Chose { row, token: 2 });
//! # Ok::<_, sluice_plugin::testing::Failure>(())
//! ```
//!
//! A plugin that keeps what [`prepare`](Plugin::prepare) made in a static sees
//! the vocabulary of the first sequence of its thread, or of the process, as
//! the static is.

mod host;
pub(crate) mod imports;
mod sequence;
mod setup;

pub use sequence::Sequence;
pub use setup::Setup;
pub use sluice_contract::{
    cases::{Failure, Kind, Outcome},
    edits::Edit,
};

use sluice_contract::cases::INVALID_PARAMS;

use crate::{LogitsProcessor, Plugin, Sampler, TokenId, TokenProcessor};

#[cfg(doc)]
use crate::{control, edits, log, logits, random, vocabulary};

/// A plugin whose kind is known: [`export!`](crate::export) implements it.
pub trait Exported: Plugin {
    const KIND: Kind;

    #[doc(hidden)]
    fn call(&mut self, accepted: &[TokenId]) -> Result<Answer, String>;
}

/// The compiler takes the plugin as used, as its component does.
#[doc(hidden)]
pub fn exported<P: Exported>() {}

/// What a plugin's call returns, of any kind.
#[doc(hidden)]
#[derive(Debug)]
pub enum Answer {
    Planned,
    Processed(Option<Vec<f32>>),
    Sampled(TokenId),
}

#[doc(hidden)]
pub fn token_processor<P: TokenProcessor>(
    plugin: &mut P,
    accepted: &[TokenId],
) -> Result<Answer, String> {
    plugin.plan(accepted).map(|()| Answer::Planned)
}

#[doc(hidden)]
pub fn logits_processor<P: LogitsProcessor>(
    plugin: &mut P,
    accepted: &[TokenId],
) -> Result<Answer, String> {
    plugin.process(accepted).map(Answer::Processed)
}

#[doc(hidden)]
pub fn sampler<P: Sampler>(plugin: &mut P, accepted: &[TokenId]) -> Result<Answer, String> {
    plugin.sample(accepted).map(Answer::Sampled)
}

/// Runs a file of cases, whose format `sluice plugin test --help` shows.
///
/// # Panics
/// When the text is no list of cases, or a case does not hold: with the id of
/// each, what was found and what was expected.
#[track_caller]
pub fn cases<P: Exported>(text: &str) {
    let cases = match sluice_contract::cases::parse(text) {
        Ok(cases) => cases,
        Err(error) => panic!("the cases are not what they should be: {error}"),
    };
    let failed = |case: &sluice_contract::cases::Case| {
        let open = || Setup::of_case(case).open::<P>();
        let why = case.check(P::KIND, open, Sequence::step).err()?;
        Some(format!("\n  {}: {why}", case.id))
    };
    let failed: Vec<_> = cases.iter().filter_map(failed).collect();
    assert!(
        failed.is_empty(),
        "{} of {} cases do not hold:{}",
        failed.len(),
        cases.len(),
        failed.concat()
    );
}

/// Opens a sequence over eight tokens with each of these parameters, given as
/// JSON: all of `accepted` must open, and all of `refused` be refused as
/// parameters, by the schema or by `open`. Give the edges of each range.
///
/// # Panics
/// With those for which that is not so.
#[track_caller]
pub fn params<P: Exported>(accepted: &[&str], refused: &[&str]) {
    let open = |params: &str| Setup::new(8).params(params).open::<P>().err();
    let wrongly_refused = accepted.iter().filter_map(|params| {
        let failure = open(params)?;
        Some(format!("\n  {params} is refused: {}", failure.message))
    });
    let wrongly_accepted = refused.iter().filter_map(|params| match open(params) {
        None => Some(format!("\n  {params} is accepted")),
        Some(failure) if failure.kind == INVALID_PARAMS => None,
        Some(failure) => Some(format!("\n  {params} fails: {}", failure.message)),
    });
    let wrong: String = wrongly_refused.chain(wrongly_accepted).collect();
    assert!(
        wrong.is_empty(),
        "params are not held to their ranges:{wrong}"
    );
}
