//! From a request's list of stages to open chains.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};

use super::bindings::types;
use super::chain::{OpenChain, Stage};
use super::deadline::Deadline;
use super::fault::{fault, kind};
use super::instance::{Instance, InstanceError, shorten};
use super::loaded::{Kind, Plugin};
use super::random::lane;
use super::report::Report;
use super::runtime::{InstancePermit, MAX_OPENING, Runtime};
use super::vocabulary::Vocabulary;
use crate::engine::{Fault, TokenId};

/// One stage of a request's chain.
#[derive(Clone, Debug)]
pub struct StageRef {
    /// What runs. The request keeps it alive when it is removed or replaced.
    pub plugin: Arc<Plugin>,
    /// Its parameters, validated by [`Plugin::validate_params`].
    pub params: Map<String, Value>,
}

/// What every stage is told of a sequence when it opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceInfo {
    /// Exactly the tokens the model is conditioned on.
    pub prompt: Vec<TokenId>,
    /// The most tokens the sequence may generate.
    pub max_tokens: u32,
    /// Every id that ends the sequence: the model's and the request's.
    pub end_ids: Vec<TokenId>,
}

/// How the choices of a request are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// How many; each has its own state and chance.
    pub n: u32,
    pub seed: i64,
    /// Whether their reports explain every position.
    pub explain: bool,
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

/// Why no chain was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The plugin refuses its parameters.
    #[error("stage `{stage}`: {message}")]
    InvalidParams { stage: String, message: String },
    /// No room for more instances now.
    #[error("{message}")]
    Full { message: String },
    #[error(transparent)]
    Fault(#[from] Fault),
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

/// What the stages of a request open with.
struct Opening<'a> {
    vocabulary: &'a Arc<Vocabulary>,
    /// The parameters are those of the stage in turn.
    info: types::SequenceInfo,
    /// For everything that the guests of the request do until they are open.
    total: Deadline,
}

impl Runtime {
    /// Opens a chain for each choice of a request: one instance for each
    /// stage, one sequence in it for each choice. Runs guest code: call it on
    /// a thread with [`STACK_BYTES`](super::STACK_BYTES) of stack.
    ///
    /// # Errors
    /// When the stages make no chain, a plugin refuses its parameters or
    /// fails, or there is no room for more instances.
    pub fn open(
        &self,
        vocabulary: &Arc<Vocabulary>,
        stages: &[StageRef],
        info: &SequenceInfo,
        choices: Choices,
    ) -> Result<Vec<OpenChain>, OpenError> {
        check_chain(stages)?;
        let permits = self
            .reserve(stages.len() as u32)
            .ok_or_else(|| OpenError::Full {
                message: format!(
                    "all {} plugin instances are in use",
                    self.limits().max_instances
                ),
            })?;
        // Strangers' guests take their turn: beside the decoder there is no
        // room for many that work for seconds.
        let _turn = if stages.iter().all(|stage| stage.plugin.builtin) {
            None
        } else {
            Some(self.turn().ok_or_else(|| OpenError::Full {
                message: format!("{MAX_OPENING} requests with uploaded plugins are opening"),
            })?)
        };
        let mut opening = Opening {
            vocabulary,
            info: types::SequenceInfo {
                params: String::new(),
                prompt: info.prompt.clone(),
                max_tokens: info.max_tokens,
                end_ids: info.end_ids.clone(),
            },
            total: Deadline::after(self.limits().prepare + self.limits().open),
        };
        let mut chains: Vec<Vec<Stage>> = (0..choices.n).map(|_| Vec::new()).collect();
        let names = names(stages);
        for ((stage, name), permit) in stages.iter().zip(&names).zip(permits) {
            opening.info.params = Value::Object(stage.params.clone()).to_string();
            self.open_stage(stage, name, permit, &opening, &mut chains)?;
        }
        let report = || {
            let plugins = stages.iter().map(|stage| Arc::clone(&stage.plugin));
            Report::new(names.iter().cloned().zip(plugins), choices.explain)
        };
        let n_words = (vocabulary.info().vocabulary_size as usize).div_ceil(32);
        Ok((0..)
            .zip(chains)
            .filter_map(|(choice, mut stages)| {
                let sampler = stages.pop()?;
                Some(OpenChain {
                    vocabulary: Arc::clone(vocabulary),
                    processors: stages,
                    sampler,
                    limit: self.limits().call,
                    seed: choices.seed,
                    choice,
                    position: 0,
                    bits: vec![0; n_words],
                    report: Arc::new(report()),
                })
            })
            .collect())
    }

    /// Makes the instance of a stage and opens a sequence in it for each
    /// chain.
    fn open_stage(
        &self,
        stage: &StageRef,
        name: &str,
        permit: InstancePermit,
        opening: &Opening<'_>,
        chains: &mut [Vec<Stage>],
    ) -> Result<(), OpenError> {
        let plugin = &stage.plugin;
        let vocabulary = Some(Arc::clone(opening.vocabulary));
        let mut instance =
            Instance::new(self, &plugin.linked, name, vocabulary, permit).map_err(|error| {
                match error {
                    InstanceError::Full(message) => OpenError::Full { message },
                    InstanceError::Fault(fault) => OpenError::Fault(fault),
                }
            })?;
        if !plugin.is_prepared(opening.vocabulary)? {
            instance.prepare(opening.total)?;
        }
        let mut sequences = Vec::with_capacity(chains.len());
        for _ in 0..chains.len() {
            let sequence = instance
                .open(&opening.info, opening.total)?
                .map_err(|error| refused(name, error))?;
            sequences.push(sequence);
        }
        let lane = match plugin.kind {
            Kind::Sampler => 0,
            _ => lane(name),
        };
        let instance = Arc::new(Mutex::new(instance));
        for (chain, sequence) in chains.iter_mut().zip(sequences) {
            let instance = Arc::clone(&instance);
            chain.push(Stage::new(
                name.to_owned(),
                plugin.kind,
                lane,
                instance,
                sequence,
            ));
        }
        Ok(())
    }
}

fn refused(stage: &str, error: types::OpenError) -> OpenError {
    match error {
        types::OpenError::InvalidParams(message) => OpenError::InvalidParams {
            stage: stage.to_owned(),
            message: shorten(message),
        },
        types::OpenError::Failed(message) => {
            OpenError::Fault(fault(stage, kind::OPEN, shorten(message)))
        }
    }
}

/// The stages' names: the plugins', with `#k` at the k-th repetition.
fn names(stages: &[StageRef]) -> Vec<String> {
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
