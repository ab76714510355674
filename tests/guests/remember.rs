//! A token processor that keeps what it must not: what it did in a call, how
//! many calls it had, or what other sequences do.

use std::cell::Cell;

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, edits, export,
    schemars::{self, JsonSchema},
};

thread_local! {
    /// Of all sequences of the instance.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    what: What,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum What {
    /// The size of the last call.
    Chunk,
    /// How many calls there were.
    Calls,
    /// That it forced a token once.
    Decision,
    /// The calls of all sequences.
    Static,
    /// Where it lies.
    Address,
}

struct Remember {
    what: What,
    calls: u32,
    place: Box<u8>,
    has_forced: bool,
}

impl Plugin for Remember {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("remember")
    }

    fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            what: params.what,
            calls: 0,
            place: Box::new(0),
            has_forced: false,
        })
    }
}

impl TokenProcessor for Remember {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.calls += 1;
        CALLS.set(CALLS.get() + 1);
        let value = match self.what {
            What::Chunk => accepted.len() as f32,
            What::Calls => self.calls as f32,
            What::Static => CALLS.get() as f32,
            What::Address => (&raw const *self.place).addr() as f32,
            What::Decision => {
                if !self.has_forced {
                    self.has_forced = true;
                    control::force(&[65]);
                }
                return Ok(());
            }
        };
        edits::add(&[65], &[value]);
        Ok(())
    }
}

export!(TokenProcessor for Remember);
