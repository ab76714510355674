//! From a request's list of stages to open chains.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use serde_json::Value;
use wasmtime::component::ResourceAny;

use super::bindings::types;
use super::chain::{ChainLimits, OpenChain};
use super::deadline::Deadline;
use super::fault::{fault, kind, shorten};
use super::instance::{Belonging, Instance, InstanceError};
use super::loaded::Plugin;
use super::pool::{Permit, Place, Room};
use super::report::Report;
use super::runtime::{MAX_OPENING, Runtime};
use super::stage::Stage;
use super::stages::{
    ChainError, OnFault, StageRef, check_chain, n_instances, n_sharing, stage_names,
};
use super::vocabulary::Vocabulary;
use crate::engine::{Fault, Presence, TokenId};

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

/// What opening the chains of one request may take, however many prompts it has.
#[derive(Clone, Copy, Debug)]
pub struct OpeningBudget {
    /// Left to its guests.
    guests: Duration,
    /// Left to wait for room.
    wait: Duration,
    /// When everything has to be open.
    end: Instant,
}

impl OpeningBudget {
    /// Waits for room, until when it is told.
    fn wait<T>(&mut self, wait: impl FnOnce(Instant) -> T) -> T {
        let started = Instant::now();
        let waited = wait((started + self.wait).min(self.end));
        self.wait = self.wait.saturating_sub(started.elapsed());
        waited
    }
}

/// What the stages of a request open with.
struct Opening<'a> {
    vocabulary: &'a Arc<Vocabulary>,
    /// The parameters are those of the stage in turn.
    info: types::SequenceInfo,
    presence: Presence,
    /// For everything that the guests of the request do until they are open.
    total: Deadline,
}

impl Runtime {
    /// What the guests of a request may take until it is open.
    fn opening_limit(&self) -> Duration {
        self.limits().prepare + self.limits().open
    }

    /// For a request whose chains have to be open at `end`.
    pub fn opening_budget(&self, end: Instant) -> OpeningBudget {
        OpeningBudget {
            guests: self.opening_limit(),
            wait: self.limits().wait,
            end,
        }
    }

    /// The same as [`open_within`](Self::open_within) for a request of one prompt
    /// that nobody waits for.
    ///
    /// # Errors
    /// As there.
    pub fn open(
        self: &Arc<Self>,
        vocabulary: &Arc<Vocabulary>,
        stages: &[StageRef],
        info: &SequenceInfo,
        choices: Choices,
    ) -> Result<Vec<OpenChain>, OpenError> {
        // As long as all that may come before it.
        let longest = self.limits().wait + self.opening_limit() * (MAX_OPENING + 1);
        let mut budget = self.opening_budget(Instant::now() + longest);
        self.open_within(vocabulary, stages, info, choices, &mut budget)
    }

    /// Opens a chain for each choice of a prompt: one instance for each
    /// stage, one sequence in it for each choice; where faults are skipped, one
    /// instance for each choice. Runs guest code: call it on a thread with
    /// [`STACK_BYTES`](super::STACK_BYTES) of stack. What the guests take goes
    /// from the budget.
    ///
    /// # Errors
    /// When the stages make no chain, a plugin refuses its parameters or
    /// fails, or there is no room for more instances.
    pub fn open_within(
        self: &Arc<Self>,
        vocabulary: &Arc<Vocabulary>,
        stages: &[StageRef],
        info: &SequenceInfo,
        choices: Choices,
        budget: &mut OpeningBudget,
    ) -> Result<Vec<OpenChain>, OpenError> {
        check_chain(stages)?;
        for stage in stages {
            if let Some(message) = stage.plugin.disabled() {
                let stage = stage.plugin.name.clone();
                return Err(OpenError::Disabled { stage, message });
            }
        }
        let places = budget.wait(|end| self.places(stages, choices.n as usize, end))?;
        let names = stage_names(stages);
        let mut opening = Opening {
            vocabulary,
            info: types::SequenceInfo {
                params: String::new(),
                prompt: info.prompt.clone(),
                max_tokens: info.max_tokens,
                end_ids: info.end_ids.clone(),
            },
            presence: Presence::default(),
            total: Deadline::after(Duration::ZERO),
        };
        let chains = loop {
            let n_freed = self.pool().n_freed();
            let opened = self.open_in_turn(stages, &names, &places, choices, &mut opening, budget);
            match opened {
                Ok(chains) => break chains,
                // Memory comes back with instances that end, as places do. If there
                // is none, the request needs more than there is.
                Err(OpenError::Fault(fault))
                    if fault.kind == kind::NO_ROOM && self.memory_bytes() > 0 =>
                {
                    if !budget.wait(|end| self.pool().wait_for_another(n_freed, end)) {
                        let message = fault.to_string();
                        return Err(OpenError::Full { message });
                    }
                }
                Err(error) => return Err(error),
            }
        };
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
                    waited: Duration::ZERO,
                    sampled: Duration::ZERO,
                    tokens: keeps_tokens.then(Vec::new),
                    seed: choices.seed,
                    choice,
                    position: 0,
                    bits: vec![0; n_words],
                    report: Arc::new(report()),
                    skipped: Vec::new(),
                    presence: Some(Arc::clone(&opening.presence)),
                })
            })
            .collect())
    }

    /// Places for the instances of each stage, once there are any. Those of single
    /// plugins come first: who waits for these keeps nobody else from anything.
    fn places(
        &self,
        stages: &[StageRef],
        n: usize,
        end: Instant,
    ) -> Result<Vec<Vec<Place>>, OpenError> {
        // In one order: no two requests wait for each other.
        let mut rooms: BTreeMap<&str, (&Room, usize)> = BTreeMap::new();
        for stage in stages {
            if let Some(room) = &stage.plugin.record.room {
                let (_, count) = rooms.entry(&stage.plugin.name).or_insert((room, 0));
                *count += n / n_sharing(stage, n);
            }
        }
        let mut own: BTreeMap<&str, Vec<Permit>> = BTreeMap::new();
        for (name, (room, count)) in rooms {
            let permits = room.instances.reserve(count as u32, end);
            let permits = permits.ok_or_else(|| OpenError::Full {
                message: format!(
                    "all {} instances that `{name}` may have are in use",
                    room.instances.most()
                ),
            })?;
            own.insert(name, permits);
        }
        let all = self.pool().reserve(n_instances(stages, n) as u32, end);
        let mut all = all.ok_or_else(|| OpenError::Full {
            message: format!("all {} plugin instances are in use", self.pool().most()),
        })?;
        let mut place = |name: &str| -> Place {
            let own = own.get_mut(name).and_then(Vec::pop);
            Arc::new([all.pop(), own])
        };
        let of = |stage: &StageRef| {
            let n_instances = n / n_sharing(stage, n);
            (0..n_instances)
                .map(|_| place(&stage.plugin.name))
                .collect()
        };
        Ok(stages.iter().map(of).collect())
    }

    /// Opens the stages of each choice, in turn with other requests if guests of
    /// strangers are among them: beside the decoder there is no room for many that
    /// work for seconds.
    fn open_in_turn(
        self: &Arc<Self>,
        stages: &[StageRef],
        names: &[String],
        places: &[Vec<Place>],
        choices: Choices,
        opening: &mut Opening<'_>,
        budget: &mut OpeningBudget,
    ) -> Result<Vec<Vec<Stage>>, OpenError> {
        let _turn = if stages.iter().all(|stage| stage.plugin.builtin) {
            None
        } else {
            Some(self.turn(budget.end).ok_or_else(|| OpenError::Full {
                message: format!("{MAX_OPENING} requests with uploaded plugins are opening"),
            })?)
        };
        let started = Instant::now();
        // The limit is the whole one: with little left of it a guest is not to blame.
        let end = budget.end.min(started + budget.guests);
        opening.total = Deadline::after(self.opening_limit()).no_later_than(end);
        let mut chains: Vec<Vec<Stage>> = (0..choices.n).map(|_| Vec::new()).collect();
        let opened =
            stages
                .iter()
                .zip(names)
                .zip(places)
                .try_for_each(|((stage, name), places)| {
                    opening.info.params = Value::Object(stage.params.clone()).to_string();
                    self.open_stage(stage, name, places, opening, &mut chains)
                });
        budget.guests = budget.guests.saturating_sub(started.elapsed());
        opened.map(|()| chains)
    }

    /// Makes the instances of a stage and opens a sequence for each chain.
    fn open_stage(
        self: &Arc<Self>,
        stage: &StageRef,
        name: &str,
        places: &[Place],
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
            wanted: Arc::downgrade(&opening.presence),
        });
        let n_sharing = n_sharing(stage, chains.len());
        for (chains, place) in chains.chunks_mut(n_sharing).zip(places) {
            let opened = source.open(place, chains.len(), opening.total);
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
                    Arc::clone(place),
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
    /// The presence of the request.
    wanted: Weak<()>,
}

impl Source {
    /// A new instance at `place` with `n` sequences at their beginning.
    fn open(
        &self,
        place: &Place,
        n: usize,
        total: Deadline,
    ) -> Result<(Instance, Vec<ResourceAny>), OpenError> {
        let mut instance = Instance::new(
            &self.runtime,
            &self.plugin.linked,
            &self.name,
            Some(Arc::clone(&self.vocabulary)),
            Belonging {
                budgets: self.plugin.record.budgets(),
                place: Arc::clone(place),
                wanted: Some(Weak::clone(&self.wanted)),
            },
            total,
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
