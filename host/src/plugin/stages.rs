//! The stages that a request lists, and whether they make a chain.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::loaded::{Kind, Plugin};

/// One stage of a request's chain.
#[derive(Clone, Debug)]
pub struct StageRef {
    /// What runs. The request keeps it alive when it is removed or replaced.
    pub plugin: Arc<Plugin>,
    /// Its parameters, validated by [`Plugin::validate_params`].
    pub params: Map<String, Value>,
    pub on_fault: OnFault,
}

impl StageRef {
    /// A stage whose faults end the sequence.
    pub fn new(plugin: Arc<Plugin>, params: Map<String, Value>) -> Self {
        Self {
            plugin,
            params,
            on_fault: OnFault::Fail,
        }
    }
}

/// What a stage's fault means for its sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// It ends.
    #[default]
    Fail,
    /// The stage is left out at that position, and opened anew with all tokens
    /// at the next; the fourth fault ends the sequence. Each choice has an
    /// instance of its own, so that its tokens do not depend on the faults of
    /// the others. Token processors only: their state follows from the tokens.
    Skip,
    /// It ends, but a plan may take far longer: the batch goes on without the
    /// sequence, which waits. Token processors only: the others run when the
    /// row is there.
    Wait,
}

/// How many instances `stages` take for `n` choices: the choices share those of
/// a stage, unless its faults are skipped.
pub fn n_instances(stages: &[StageRef], n: usize) -> usize {
    stages.iter().map(|stage| n / n_sharing(stage, n)).sum()
}

/// An uploaded plugin of the name whose plugins take the most instances for `n`
/// choices, and how many they take.
pub fn n_instances_of_one(stages: &[StageRef], n: usize) -> Option<(&Plugin, usize)> {
    let uploaded = stages.iter().filter(|stage| !stage.plugin.builtin);
    let of = |plugin: &Arc<Plugin>| {
        let own = uploaded.clone().filter(|s| s.plugin.name == plugin.name);
        own.map(|stage| n / n_sharing(stage, n)).sum()
    };
    uploaded
        .clone()
        .map(|stage| (&*stage.plugin, of(&stage.plugin)))
        .max_by_key(|(_, n)| *n)
}

/// How many of `n` choices share an instance of the stage.
pub(super) fn n_sharing(stage: &StageRef, n: usize) -> usize {
    match stage.on_fault {
        OnFault::Skip => 1,
        OnFault::Fail | OnFault::Wait => n.max(1),
    }
}

/// Stages that do not make a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    #[error("the chain has no sampler; its last stage must be one")]
    NoSampler,
    #[error("the chain goes on after the sampler `{sampler}`, which must be its last stage")]
    AfterSampler { index: usize, sampler: String },
    #[error(
        "the token processor `{stage}` stands after the logits processor `{before}`; token \
         processors come first"
    )]
    Order {
        index: usize,
        stage: String,
        before: String,
    },
}

impl ChainError {
    /// The index of the stage at fault, if it is one stage's.
    pub fn index(&self) -> Option<usize> {
        match self {
            Self::NoSampler => None,
            Self::AfterSampler { index, .. } | Self::Order { index, .. } => Some(*index),
        }
    }
}

/// Checks that stages make a chain: token processors, then logits processors,
/// then exactly one sampler.
///
/// # Errors
/// The first stage that stands in the wrong place, or the missing sampler.
pub fn check_chain(stages: &[StageRef]) -> Result<(), ChainError> {
    let stages: Vec<_> = stages
        .iter()
        .map(|stage| (stage.plugin.name.as_str(), stage.plugin.kind))
        .collect();
    check_kinds(&stages)
}

fn check_kinds(stages: &[(&str, Kind)]) -> Result<(), ChainError> {
    for (i, pair) in stages.windows(2).enumerate() {
        let [(before, before_kind), (stage, stage_kind)] = *pair else {
            continue;
        };
        if before_kind == Kind::Sampler {
            return Err(ChainError::AfterSampler {
                index: i,
                sampler: before.to_owned(),
            });
        }
        if stage_kind < before_kind {
            return Err(ChainError::Order {
                index: i + 1,
                stage: stage.to_owned(),
                before: before.to_owned(),
            });
        }
    }
    match stages.last() {
        Some((_, Kind::Sampler)) => Ok(()),
        _ => Err(ChainError::NoSampler),
    }
}

/// The stages' names as faults and reports have them: the plugins', with `#k` at the
/// k-th repetition.
pub fn stage_names(stages: &[StageRef]) -> Vec<String> {
    let mut n_seen: HashMap<&str, u32> = HashMap::new();
    stages
        .iter()
        .map(|stage| {
            let name = stage.plugin.name.as_str();
            let k = n_seen.entry(name).or_default();
            *k += 1;
            match *k - 1 {
                0 => name.to_owned(),
                k => format!("{name}#{k}"),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Kind::{LogitsProcessor, Sampler, TokenProcessor};

    #[test]
    fn a_chain_ends_in_its_only_sampler() {
        assert_eq!(check_kinds(&[("s", Sampler)]), Ok(()));
        assert_eq!(
            check_kinds(&[
                ("a", TokenProcessor),
                ("a", TokenProcessor),
                ("b", LogitsProcessor),
                ("s", Sampler)
            ]),
            Ok(())
        );
        assert_eq!(check_kinds(&[]), Err(ChainError::NoSampler));
        assert_eq!(
            check_kinds(&[("a", TokenProcessor)]),
            Err(ChainError::NoSampler)
        );
        let error = check_kinds(&[("s", Sampler), ("t", Sampler)]).map_err(|e| e.index());
        assert_eq!(error, Err(Some(0)));
    }

    #[test]
    fn token_processors_come_first() {
        let error = check_kinds(&[
            ("b", LogitsProcessor),
            ("a", TokenProcessor),
            ("s", Sampler),
        ]);
        assert_eq!(
            error,
            Err(ChainError::Order {
                index: 1,
                stage: "a".to_owned(),
                before: "b".to_owned()
            })
        );
    }
}
