//! A token processor that does what it must not: any fault of
//! `test_guests::commit`, or one of its own.

use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, edits, export,
    vocabulary,
};
use test_guests::{Misbehaviour, commit};

pub(crate) struct Misbehave(Misbehaviour);

impl Plugin for Misbehave {
    type Params = Misbehaviour;

    fn describe() -> Description {
        test_guests::description("misbehave-token")
    }

    fn open(params: Misbehaviour, _: SequenceInfo) -> Result<Self, OpenError> {
        params
            .at_open()
            .map_or(Ok(()), act)
            .map_err(OpenError::Failed)?;
        Ok(Self(params))
    }
}

impl TokenProcessor for Misbehave {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.0.at_call(accepted.len()).map_or(Ok(()), act)
    }
}

fn act(fault: &str) -> Result<(), String> {
    let outside = vocabulary::model().vocabulary_size;
    match fault {
        "nan-edit" => edits::add(&[0], &[f32::NAN]),
        "infinite-edit" => edits::add(&[0], &[f32::INFINITY]),
        "outside-edit" => edits::add(&[outside], &[1.0]),
        "unequal-edit" => edits::add(&[0, 1], &[1.0]),
        "zero-divisor" => edits::scale(&[0], 0.0),
        "outside-deny" => edits::deny(&[outside]),
        "deny-all" => edits::mask(&[]),
        "deny" => edits::deny(&[0]),
        "force" => control::force(&[0]),
        "force-nothing" => control::force(&[]),
        "force-outside" => control::force(&[outside]),
        "decide-twice" => {
            control::force(&[0]);
            control::stop();
        }
        other => return commit(other),
    }
    Ok(())
}

export!(TokenProcessor for Misbehave);
