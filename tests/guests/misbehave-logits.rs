//! A logits processor that does what it must not: any fault of
//! `test_guests::commit`, or one of its own.

use sluice_plugin::{
    Description, LogitsProcessor, OpenError, Plugin, SequenceInfo, TokenId, edits, export, logits,
    vocabulary,
};
use test_guests::{Misbehaviour, commit};

pub(crate) struct Misbehave(Misbehaviour);

impl Plugin for Misbehave {
    type Params = Misbehaviour;

    fn describe() -> Description {
        test_guests::description("misbehave-logits")
    }

    fn open(params: Misbehaviour, _: SequenceInfo) -> Result<Self, OpenError> {
        if let Some(fault) = params.at_open() {
            act(fault).map_err(OpenError::Failed)?;
        }
        Ok(Self(params))
    }
}

impl LogitsProcessor for Misbehave {
    fn process(&mut self, accepted: &[TokenId]) -> Result<Option<Vec<f32>>, String> {
        self.0.at_call(accepted.len()).map_or(Ok(None), act)
    }
}

fn act(fault: &str) -> Result<Option<Vec<f32>>, String> {
    let width = vocabulary::model().vocabulary_size as usize;
    match fault {
        "nan-row" => return Ok(Some(vec![f32::NAN; width])),
        "infinite-row" => return Ok(Some(vec![f32::INFINITY; width])),
        "banned-row" => return Ok(Some(vec![f32::NEG_INFINITY; width])),
        "zero-row" => return Ok(Some(vec![0.0; width])),
        "short-row" => return Ok(Some(vec![0.0; width - 1])),
        "long-row" => return Ok(Some(vec![0.0; width + 1])),
        "edit-and-row" => {
            edits::deny(&[0]);
            return Ok(Some(vec![0.0; width]));
        }
        "nan-edit" => edits::add(&[0], &[f32::NAN]),
        "deny" => edits::deny(&[0]),
        "deny-all" => edits::mask(&[]),
        "zero-temperature" => drop(logits::log_sum_exp(0.0)),
        "read" => drop(logits::row()),
        other => commit(other)?,
    }
    Ok(None)
}

export!(LogitsProcessor for Misbehave);
