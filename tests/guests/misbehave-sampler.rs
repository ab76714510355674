//! A sampler that does what it must not: any fault of `test_guests::commit`,
//! or one of its own. Otherwise greedy.

use sluice_plugin::{
    Description, OpenError, Plugin, Sampler, SequenceInfo, TokenId, export, logits, vocabulary,
};
use test_guests::{Misbehaviour, commit};

pub(crate) struct Misbehave(Misbehaviour);

impl Plugin for Misbehave {
    type Params = Misbehaviour;

    fn describe() -> Description {
        test_guests::description("misbehave-sampler")
    }

    fn open(params: Misbehaviour, _: SequenceInfo) -> Result<Self, OpenError> {
        if let Some(fault) = params.at_open() {
            act(fault).map_err(OpenError::Failed)?;
        }
        Ok(Self(params))
    }
}

impl Sampler for Misbehave {
    fn sample(&mut self, accepted: &[TokenId]) -> Result<TokenId, String> {
        match self.0.at_call(accepted.len()) {
            Some(fault) => act(fault),
            None => best(),
        }
    }
}

fn act(fault: &str) -> Result<TokenId, String> {
    match fault {
        "outside" => Ok(vocabulary::model().vocabulary_size),
        "banned" => {
            let row = logits::row();
            let banned = row.iter().position(|&logit| logit == f32::NEG_INFINITY);
            banned
                .map(|id| id as TokenId)
                .ok_or_else(|| "no token is banned".into())
        }
        "zero-temperature" => {
            logits::log_sum_exp(0.0);
            best()
        }
        "read" => best(),
        other => commit(other).and_then(|()| best()),
    }
}

fn best() -> Result<TokenId, String> {
    logits::top(1)
        .ids
        .first()
        .copied()
        .ok_or_else(|| "every token is banned".into())
}

export!(Sampler for Misbehave);
