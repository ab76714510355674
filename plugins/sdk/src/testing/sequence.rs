use sluice_contract::{
    cases::{Failure, Outcome},
    edits::{Edit, Passes},
    phase::{Decision, Phase},
};

use super::{
    Answer, Exported, Kind,
    host::{self, Host},
};
use crate::{TokenId, log::Level, ranking::Row};

/// An open sequence of a plugin, outside a component.
#[derive(Debug)]
pub struct Sequence<P> {
    plugin: P,
    host: Host,
    /// A fault ended it.
    ended: Option<Failure>,
}

impl<P: Exported> Sequence<P> {
    pub(super) fn new(plugin: P, host: Host) -> Self {
        Self {
            plugin,
            host,
            ended: None,
        }
    }

    /// Tells the plugin of the tokens `accepted` since the last step, and asks
    /// it about the position after them, whose logits are `row`. Where it is no
    /// sampler, the best token of the row that it leaves is taken.
    pub fn step(&mut self, accepted: &[TokenId], row: &[f32]) -> Outcome {
        if let Some(first) = &self.ended {
            let message = format!("the sequence had ended before: {}", first.message);
            return Outcome::Failed(Failure::new("ended", message));
        }
        self.try_step(accepted, row)
            .unwrap_or_else(|failure| self.fail(failure))
    }

    fn try_step(&mut self, accepted: &[TokenId], row: &[f32]) -> Result<Outcome, Failure> {
        self.host.start(accepted.len(), row)?;
        let phase = match P::KIND {
            Kind::TokenProcessor => Phase::Plan,
            Kind::LogitsProcessor => Phase::Process,
            Kind::Sampler => Phase::Sample,
        };
        let plugin = &mut self.plugin;
        let said = host::call(&mut self.host, phase, || plugin.call(accepted))?;
        match said.map_err(|message| Failure::new("error", message))? {
            Answer::Planned => match self.host.decision.take() {
                Some(Decision::Force(tokens)) => Ok(Outcome::Forced(tokens)),
                Some(Decision::Stop) => Ok(Outcome::Stopped),
                None => chosen(self.edited(row)?),
            },
            Answer::Processed(None) => chosen(self.edited(row)?),
            Answer::Processed(Some(new_row)) => chosen(self.replaced(row, &new_row)?),
            Answer::Sampled(token) => sampled(row, token),
        }
    }

    /// The plugin's own `err` ends a position, everything else the sequence.
    fn fail(&mut self, failure: Failure) -> Outcome {
        if failure.kind != "error" {
            self.ended = Some(failure.clone());
        }
        Outcome::Failed(failure)
    }

    fn edited(&self, row: &[f32]) -> Result<Vec<f32>, Failure> {
        let mut row = row.to_vec();
        let mut bits = vec![0; row.len().div_ceil(32)];
        self.host
            .edits
            .apply(&mut row, &mut bits, Passes::PLAIN)
            .map_err(|overflow| Failure::new("invalid_edit", overflow.to_string()))?;
        Ok(row)
    }

    /// The row that `process` returned. What was banned stays banned.
    fn replaced(&self, row: &[f32], new_row: &[f32]) -> Result<Vec<f32>, Failure> {
        if !self.host.edits.is_empty() {
            let message = "`process` made edits and returned a row; it may do one of them";
            return Err(Failure::new("invalid_edit", message));
        }
        let invalid = |message| Failure::new("invalid_row", message);
        if new_row.len() != row.len() {
            return Err(invalid(format!(
                "`process` returned a row of {} values, the vocabulary has {}",
                new_row.len(),
                row.len()
            )));
        }
        let is_no_logit = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        if let Some(id) = new_row.iter().position(is_no_logit) {
            let logit = new_row[id];
            return Err(invalid(format!(
                "`process` returned {logit} for the token {id}"
            )));
        }
        let keep = |(&old, &new): (&f32, &f32)| if is_open(old) { new } else { old };
        Ok(row.iter().zip(new_row).map(keep).collect())
    }

    /// What the last step's call asked of [`edits`](crate::edits), in order.
    pub fn edits(&self) -> &[Edit] {
        self.host.edits.list()
    }

    /// What the plugin wrote to [`log`](crate::log) since it was prepared.
    pub fn log(&self) -> &[(Level, String)] {
        &self.host.log
    }

    /// The plugin's state.
    pub fn plugin(&self) -> &P {
        &self.plugin
    }
}

fn is_open(logit: f32) -> bool {
    logit > f32::NEG_INFINITY
}

/// The best token, as a sampler at temperature 0 takes it.
fn chosen(row: Vec<f32>) -> Result<Outcome, Failure> {
    let best = row.as_slice().top(1).ids.first().copied();
    let all_banned = || Failure::new("all_banned", "it banned the last token that was left");
    let token = best.ok_or_else(all_banned)?;
    Ok(Outcome::Chose { row, token })
}

fn sampled(row: &[f32], token: TokenId) -> Result<Outcome, Failure> {
    let what = match row.get(token as usize) {
        Some(&logit) if is_open(logit) => {
            let row = row.to_vec();
            return Ok(Outcome::Chose { row, token });
        }
        Some(_) => "which is banned".to_owned(),
        None => format!("the vocabulary has {}", row.len()),
    };
    let message = format!("`sample` returned the token {token}, {what}");
    Err(Failure::new("banned_token", message))
}
