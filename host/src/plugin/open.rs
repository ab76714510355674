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
use super::memory::MemoryBudget;
use super::pool::{Permit, Place, Pool};
use super::report::Report;
use super::runtime::{MAX_OPENING, Runtime};
use super::stage::Stage;
use super::stages::{
    ChainError, OnFault, StageRef, check_chain, n_instances, n_sharing, stage_names,
};
use super::vocabulary::Vocabulary;
use crate::engine::{Fault, Presence, TokenId};

/// Places for all instances of a request, and its turn to open them.
pub struct Reserved {
    /// Of each name that has a room of its own.
    own: BTreeMap<String, Vec<Permit>>,
    all: Vec<Permit>,
    /// None where no guest of a stranger is among them, which needs no turn.
    turn: Option<Vec<Permit>>,
}

impl Reserved {
    /// Takes the places of the stages of one prompt.
    fn places(&mut self, stages: &[StageRef], n: usize) -> Vec<Vec<Place>> {
        let mut place = |name: &str| -> Place {
            let own = self.own.get_mut(name).and_then(Vec::pop);
            Arc::new([self.all.pop(), own])
        };
        let of = |stage: &StageRef| {
            let n_instances = n / n_sharing(stage, n);
            (0..n_instances)
                .map(|_| place(&stage.plugin.name))
                .collect()
        };
        stages.iter().map(of).collect()
    }
}

/// So many places of a pool.
struct Need<'a> {
    /// The name whose room it is; none for that of all.
    name: Option<&'a str>,
    pool: &'a Arc<Pool>,
    n: u32,
}

impl Need<'_> {
    fn full(&self) -> OpenError {
        let most = self.pool.most();
        let message = match self.name {
            Some(name) => format!("all {most} instances that `{name}` may have are in use"),
            None => format!("all {most} plugin instances are in use"),
        };
        OpenError::Full { message }
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
        let mut reserved = self.reserve(stages, choices.n as usize, 1, &mut budget)?;
        self.open_within(
            vocabulary,
            stages,
            info,
            choices,
            &mut reserved,
            &mut budget,
        )
    }

    /// Waits until there is room for as many chains of these stages as a request
    /// has prompts, each for `n` choices, and until it is its turn to open them.
    /// Nothing is kept of either while the other is waited for: who waits keeps
    /// nobody from anything.
    ///
    /// # Errors
    /// When the stages make no chain, or there is no room for more instances.
    pub fn reserve(
        &self,
        stages: &[StageRef],
        n: usize,
        n_prompts: usize,
        budget: &mut OpeningBudget,
    ) -> Result<Reserved, OpenError> {
        check_chain(stages)?;
        for stage in stages {
            if let Some(message) = stage.plugin.disabled() {
                let stage = stage.plugin.name.clone();
                return Err(OpenError::Disabled { stage, message });
            }
        }
        let needs = self.needs(stages, n, n_prompts);
        let takes_turns = stages.iter().any(|stage| !stage.plugin.builtin);
        loop {
            for need in &needs {
                if !budget.wait(|end| need.pool.wait_for(need.n, end)) {
                    return Err(need.full());
                }
            }
            let turn = takes_turns.then(|| self.turn_until(budget.end));
            let turn = turn.transpose()?;
            // Others may have been sooner.
            let now = Instant::now();
            let taken = needs.iter().map(|need| need.pool.reserve(need.n, now));
            let Some(mut permits) = taken.collect::<Option<Vec<_>>>() else {
                continue;
            };
            return Ok(Reserved {
                all: permits.pop().unwrap_or_default(),
                own: needs
                    .iter()
                    .filter_map(|need| need.name.map(str::to_owned))
                    .zip(permits)
                    .collect(),
                turn,
            });
        }
    }

    /// Places of each name that has a room of its own, and last those of all.
    fn needs<'a>(&'a self, stages: &'a [StageRef], n: usize, n_prompts: usize) -> Vec<Need<'a>> {
        let mut own: BTreeMap<&str, Need> = BTreeMap::new();
        for stage in stages {
            if let Some(room) = &stage.plugin.record.room {
                let name = stage.plugin.name.as_str();
                let need = own.entry(name).or_insert(Need {
                    name: Some(name),
                    pool: &room.instances,
                    n: 0,
                });
                need.n += (n_prompts * n / n_sharing(stage, n)) as u32;
            }
        }
        let all = Need {
            name: None,
            pool: self.pool(),
            n: (n_prompts * n_instances(stages, n)) as u32,
        };
        own.into_values().chain([all]).collect()
    }

    /// The turn to open guests of strangers, once nobody else has it: beside the
    /// decoder there is no room for many that work for seconds.
    fn turn_until(&self, end: Instant) -> Result<Vec<Permit>, OpenError> {
        self.turn(end).ok_or_else(|| OpenError::Full {
            message: format!("{MAX_OPENING} requests with uploaded plugins are opening"),
        })
    }

    /// Opens a chain for each choice of a prompt: one instance for each
    /// stage, one sequence in it for each choice; where faults are skipped, one
    /// instance for each choice. Runs guest code: call it on a thread with
    /// [`STACK_BYTES`](super::STACK_BYTES) of stack. What the guests take goes
    /// from the budget, the places from what is reserved.
    ///
    /// # Errors
    /// When a plugin refuses its parameters or fails, or there is no room for more
    /// memory.
    pub fn open_within(
        self: &Arc<Self>,
        vocabulary: &Arc<Vocabulary>,
        stages: &[StageRef],
        info: &SequenceInfo,
        choices: Choices,
        reserved: &mut Reserved,
        budget: &mut OpeningBudget,
    ) -> Result<Vec<OpenChain>, OpenError> {
        let places = reserved.places(stages, choices.n as usize);
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
        let mut full: Option<OpenError> = None;
        let chains = loop {
            let n_freed = self.pool().n_freed();
            let held = self.held(stages);
            let is_in_turn = reserved.turn.is_some();
            match self.open_stages(
                stages,
                &names,
                &places,
                choices,
                &mut opening,
                is_in_turn,
                budget,
            ) {
                Ok(chains) => break chains,
                // Memory comes back with instances that end, as places do. Where
                // nobody else had any, the request needs more than there is.
                Err(OpenError::Fault(fault))
                    if fault.kind == kind::NO_ROOM && held.have_refused() =>
                {
                    let message = fault.to_string();
                    let full = full.insert(OpenError::Full { message });
                    reserved.turn = None;
                    let is_freed = budget.wait(|end| {
                        let is_freed = self.pool().wait_for_another(n_freed, end);
                        if is_freed && is_in_turn {
                            reserved.turn = self.turn(end);
                        }
                        is_freed && is_in_turn == reserved.turn.is_some()
                    });
                    if !is_freed {
                        return Err(full.clone());
                    }
                }
                // The waiting has left it no time.
                Err(OpenError::Fault(fault)) if fault.kind == kind::LATE && full.is_some() => {
                    return Err(full.unwrap_or(OpenError::Fault(fault)));
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

    /// The memory that instances of these plugins count for, before a request has
    /// any of its own.
    fn held(&self, stages: &[StageRef]) -> Held {
        let rooms = stages
            .iter()
            .filter_map(|stage| stage.plugin.record.room.as_ref());
        let budgets = rooms.map(|room| &room.memory).chain([self.memory()]);
        Held(
            budgets
                .filter(|budget| budget.used_bytes() > 0)
                .map(|budget| (Arc::clone(budget), budget.n_refused()))
                .collect(),
        )
    }

    /// Opens the stages of each choice.
    #[allow(clippy::too_many_arguments)]
    fn open_stages(
        self: &Arc<Self>,
        stages: &[StageRef],
        names: &[String],
        places: &[Vec<Place>],
        choices: Choices,
        opening: &mut Opening<'_>,
        is_in_turn: bool,
        budget: &mut OpeningBudget,
    ) -> Result<Vec<Vec<Stage>>, OpenError> {
        let started = Instant::now();
        // Nobody waits for those that take no turns.
        let guests = if is_in_turn {
            budget.guests
        } else {
            self.opening_limit()
        };
        // The limit is the whole one: with little left of it a guest is not to blame.
        let end = budget.end.min(started + guests);
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

/// Memory that others had, and how often each budget had refused more.
struct Held(Vec<(Arc<MemoryBudget>, u64)>);

impl Held {
    /// Whether one of them has refused some since.
    fn have_refused(&self) -> bool {
        let mut budgets = self.0.iter();
        budgets.any(|(budget, n_refused)| budget.n_refused() > *n_refused)
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
