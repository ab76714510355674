//! From a request's list of stages to open chains.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value};
use wasmtime::component::ResourceAny;

use super::bindings::types;
use super::chain::{ChainLimits, OpenChain};
use super::deadline::Deadline;
use super::fault::{fault, kind};
use super::instance::{Instance, InstanceError, shorten};
use super::loaded::{Kind, Plugin};
use super::pool::{Permit, Place};
use super::report::Report;
use super::runtime::{MAX_OPENING, Runtime};
use super::stage::Stage;
use super::vocabulary::Vocabulary;
use crate::engine::{Fault, TokenId};

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

/// The uploaded plugin that takes the most instances for `n` choices, and how
/// many.
pub fn n_instances_of_one(stages: &[StageRef], n: usize) -> Option<(&Plugin, usize)> {
    let uploaded = stages.iter().filter(|stage| !stage.plugin.builtin);
    let of = |plugin: &Arc<Plugin>| {
        let own = stages.iter().filter(|s| s.plugin.digest == plugin.digest);
        own.map(|stage| n / n_sharing(stage, n)).sum()
    };
    uploaded
        .map(|stage| (&*stage.plugin, of(&stage.plugin)))
        .max_by_key(|(_, n)| *n)
}

/// How many of `n` choices share an instance of the stage.
fn n_sharing(stage: &StageRef, n: usize) -> usize {
    match stage.on_fault {
        OnFault::Skip => 1,
        OnFault::Fail | OnFault::Wait => n.max(1),
    }
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
    /// The plugin failed too often of late.
    #[error("the plugin of stage `{stage}` is disabled: {message}")]
    Disabled { stage: String, message: String },
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
    /// stage, one sequence in it for each choice; where faults are skipped, one
    /// instance for each choice. Runs guest code: call it on a thread with
    /// [`STACK_BYTES`](super::STACK_BYTES) of stack.
    ///
    /// # Errors
    /// When the stages make no chain, a plugin refuses its parameters or
    /// fails, or there is no room for more instances.
    pub fn open(
        self: &Arc<Self>,
        vocabulary: &Arc<Vocabulary>,
        stages: &[StageRef],
        info: &SequenceInfo,
        choices: Choices,
    ) -> Result<Vec<OpenChain>, OpenError> {
        check_chain(stages)?;
        for stage in stages {
            if let Some(message) = stage.plugin.disabled() {
                let stage = stage.plugin.name.clone();
                return Err(OpenError::Disabled { stage, message });
            }
        }
        // Strangers' guests take their turn: beside the decoder there is no
        // room for many that work for seconds.
        let _turn = if stages.iter().all(|stage| stage.plugin.builtin) {
            None
        } else {
            Some(self.turn().ok_or_else(|| OpenError::Full {
                message: format!("{MAX_OPENING} requests with uploaded plugins are opening"),
            })?)
        };
        let permits = self
            .reserve(n_instances(stages, choices.n as usize) as u32)
            .ok_or_else(|| OpenError::Full {
                message: format!(
                    "all {} plugin instances are in use",
                    self.limits().max_instances
                ),
            })?;
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
        let mut permits = permits.into_iter();
        for (stage, name) in stages.iter().zip(&names) {
            opening.info.params = Value::Object(stage.params.clone()).to_string();
            self.open_stage(stage, name, &mut permits, &opening, &mut chains)?;
        }
        let report = || {
            let plugins = stages.iter().map(|stage| Arc::clone(&stage.plugin));
            Report::new(names.iter().cloned().zip(plugins), choices.explain)
        };
        let keeps_tokens = stages.iter().any(|stage| stage.on_fault == OnFault::Skip);
        let may_be_late = stages.iter().any(|stage| stage.on_fault == OnFault::Wait);
        let n_words = (vocabulary.info().vocabulary_size as usize).div_ceil(32);
        Ok((0..)
            .zip(chains)
            .filter_map(|(choice, mut stages)| {
                let sampler = stages.pop()?;
                Some(OpenChain {
                    vocabulary: Arc::clone(vocabulary),
                    processors: stages,
                    sampler,
                    limits: ChainLimits {
                        call: self.limits().call,
                        late: self.limits().late,
                        total: self.limits().total,
                        breaker: self.limits().breaker,
                    },
                    patience: may_be_late.then_some(self.limits().patience),
                    spent: Duration::ZERO,
                    sampled: Duration::ZERO,
                    tokens: keeps_tokens.then(Vec::new),
                    seed: choices.seed,
                    choice,
                    position: 0,
                    bits: vec![0; n_words],
                    report: Arc::new(report()),
                    skipped: Vec::new(),
                })
            })
            .collect())
    }

    /// Makes the instances of a stage and opens a sequence for each chain.
    fn open_stage(
        self: &Arc<Self>,
        stage: &StageRef,
        name: &str,
        permits: &mut impl Iterator<Item = Permit>,
        opening: &Opening<'_>,
        chains: &mut [Vec<Stage>],
    ) -> Result<(), OpenError> {
        let source = Arc::new(Source {
            runtime: Arc::clone(self),
            plugin: Arc::clone(&stage.plugin),
            name: name.to_owned(),
            on_fault: stage.on_fault,
            vocabulary: Arc::clone(opening.vocabulary),
            info: opening.info.clone(),
        });
        let n_sharing = n_sharing(stage, chains.len());
        let n_instances = chains.len() / n_sharing;
        let mut own = source.own_permits(n_instances as u32, self.limits().wait)?;
        for (chains, permit) in chains.chunks_mut(n_sharing).zip(permits) {
            let place: Place = Arc::new([Some(permit), own.pop()]);
            let opened = source.open(&place, chains.len(), opening.total);
            if let Err(OpenError::Fault(fault)) = &opened {
                stage.plugin.failed(fault, self.limits().breaker);
            }
            let (instance, sequences) = opened?;
            let instance = Arc::new(Mutex::new(instance));
            for (chain, sequence) in chains.iter_mut().zip(sequences) {
                chain.push(Stage::new(
                    Arc::clone(&source),
                    Arc::clone(&instance),
                    sequence,
                    Arc::clone(&place),
                ));
            }
        }
        Ok(())
    }
}

/// Where a stage's instances come from.
pub(super) struct Source {
    pub(super) runtime: Arc<Runtime>,
    pub(super) plugin: Arc<Plugin>,
    /// The stage's name.
    pub(super) name: String,
    pub(super) on_fault: OnFault,
    vocabulary: Arc<Vocabulary>,
    info: types::SequenceInfo,
}

impl Source {
    /// A new instance at `place` with `n` sequences at their beginning.
    fn open(
        &self,
        place: &Place,
        n: usize,
        total: Deadline,
    ) -> Result<(Instance, Vec<ResourceAny>), OpenError> {
        let vocabulary = Some(Arc::clone(&self.vocabulary));
        let linked = &self.plugin.linked;
        let place = Arc::clone(place);
        let own = Some(Arc::clone(&self.plugin.record.memory));
        let runtime = &self.runtime;
        let mut instance = Instance::new(
            runtime, linked, &self.name, vocabulary, own, place, total,
        )
        .map_err(|error| match error {
            InstanceError::Full(message) => OpenError::Full { message },
            InstanceError::Fault(fault) => OpenError::Fault(fault),
        })?;
        let opened = self.open_in(&mut instance, n, total);
        for line in instance.take_log() {
            self.plugin.record.write(line);
        }
        Ok((instance, opened?))
    }

    /// Room for `n` instances more of an uploaded plugin; others need none.
    fn own_permits(&self, n: u32, patience: Duration) -> Result<Vec<Permit>, OpenError> {
        if self.plugin.builtin {
            return Ok(Vec::new());
        }
        let most = self.runtime.limits().max_instances_of_one;
        let pool = &self.plugin.record.pool;
        pool.reserve(n, most, patience)
            .ok_or_else(|| OpenError::Full {
                message: format!(
                    "all {most} instances that `{}` may have are in use",
                    self.name
                ),
            })
    }

    fn open_in(
        &self,
        instance: &mut Instance,
        n: usize,
        total: Deadline,
    ) -> Result<Vec<ResourceAny>, OpenError> {
        if !self.plugin.is_prepared(&self.vocabulary)? {
            instance.prepare(total)?;
        }
        (0..n)
            .map(|_| {
                instance
                    .open(&self.info, total)?
                    .map_err(|error| refused(&self.name, error))
            })
            .collect()
    }

    /// A new instance with one sequence, for a stage that goes on after a
    /// fault, at the place of the one before, which is gone.
    pub(super) fn reopen(
        &self,
        place: &Place,
        deadline: Deadline,
    ) -> Result<(Instance, ResourceAny), Fault> {
        let failed = |message: String| fault(&self.name, kind::OPEN, message);
        let opened = self.open(place, 1, deadline);
        let (instance, mut sequences) = opened.map_err(|error| match error {
            OpenError::Fault(fault) => fault,
            other => failed(other.to_string()),
        })?;
        let sequence = sequences.pop();
        Ok((
            instance,
            sequence.ok_or_else(|| failed("it opened no sequence".into()))?,
        ))
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
