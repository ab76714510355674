//! One instance of a plugin: a store, the guest's exports, and the rule that
//! every call of them has a deadline and ends in a value or a fault.

use std::mem;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use wasmtime::component::{Component, ResourceAny};
use wasmtime::{PoolConcurrencyLimitError, Store, UpdateDeadline};

use super::bindings::logits_plugin::{self, LogitsPlugin, LogitsPluginPre};
use super::bindings::sampler::{self, SamplerPlugin, SamplerPluginPre};
use super::bindings::token::{self, TokenPlugin, TokenPluginPre};
use super::bindings::types::{OpenError, SequenceInfo};
use super::crossed::Crossed;
use super::deadline::Deadline;
use super::edits::Edits;
use super::fault::{self, fault, kind, shorten};
use super::loaded::Kind;
use super::memory::{MemoryBudget, MemoryLimiter};
use super::pool::Place;
use super::record::LogLine;
use super::runtime::{Limits, Runtime, host_call_bytes};
use super::state::HostState;
use super::vocabulary::Vocabulary;
use crate::engine::{Fault, TokenId};
use sluice_contract::chance::Chance;
use sluice_contract::phase::{Decision, Phase};
use sluice_kernels::row::Scanned;

/// A component whose imports are linked and whose exports have the contract's
/// types: ready to be made an instance of.
pub(super) enum Linked {
    Token(TokenPluginPre<HostState>),
    Logits(LogitsPluginPre<HostState>),
    Sampler(SamplerPluginPre<HostState>),
}

impl Linked {
    pub(super) fn new(
        runtime: &Runtime,
        kind: Kind,
        component: &Component,
    ) -> wasmtime::Result<Self> {
        let linked = runtime
            .linker(kind, component)?
            .instantiate_pre(component)?;
        Ok(match kind {
            Kind::TokenProcessor => Self::Token(TokenPluginPre::new(linked)?),
            Kind::LogitsProcessor => Self::Logits(LogitsPluginPre::new(linked)?),
            Kind::Sampler => Self::Sampler(SamplerPluginPre::new(linked)?),
        })
    }

    fn instantiate(&self, store: &mut Store<HostState>) -> wasmtime::Result<Guest> {
        Ok(match self {
            Self::Token(linked) => Guest::Token(linked.instantiate(store)?),
            Self::Logits(linked) => Guest::Logits(linked.instantiate(store)?),
            Self::Sampler(linked) => Guest::Sampler(linked.instantiate(store)?),
        })
    }
}

enum Guest {
    Token(TokenPlugin),
    Logits(LogitsPlugin),
    Sampler(SamplerPlugin),
}

impl Guest {
    fn token(
        &self,
    ) -> wasmtime::Result<token::exports::sluice::sampling::token_processor::GuestSequence<'_>>
    {
        match self {
            Self::Token(guest) => Ok(guest.sluice_sampling_token_processor().sequence()),
            _ => Err(wasmtime::Error::msg("the plugin is not a token processor")),
        }
    }

    fn logits(
        &self,
    ) -> wasmtime::Result<
        logits_plugin::exports::sluice::sampling::logits_processor::GuestSequence<'_>,
    > {
        match self {
            Self::Logits(guest) => Ok(guest.sluice_sampling_logits_processor().sequence()),
            _ => Err(wasmtime::Error::msg("the plugin is not a logits processor")),
        }
    }

    fn sampler(
        &self,
    ) -> wasmtime::Result<sampler::exports::sluice::sampling::sampler::GuestSequence<'_>> {
        match self {
            Self::Sampler(guest) => Ok(guest.sluice_sampling_sampler().sequence()),
            _ => Err(wasmtime::Error::msg("the plugin is not a sampler")),
        }
    }
}

/// What a plugin says of itself, unchecked.
pub(super) struct Description {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) summary: String,
    pub(super) params_schema: String,
}

/// Why there is no instance.
pub(super) enum InstanceError {
    /// The pool is used up; another time there may be room.
    Full(String),
    Fault(Fault),
}

/// Whose an instance is, and whose room it takes; nobody's by default.
#[derive(Default)]
pub(super) struct Belonging {
    /// What its memory counts for beside that of all plugins.
    pub(super) budgets: Vec<Arc<MemoryBudget>>,
    pub(super) place: Place,
    /// See [`HostState::wanted`].
    pub(super) wanted: Option<Weak<()>>,
}

/// One instance. Its sequences are the choices of one request. Dropping it
/// runs no guest code.
pub(super) struct Instance {
    stage: String,
    limits: Limits,
    store: Store<HostState>,
    guest: Guest,
    /// The fault that ended the instance: the runtime refuses later calls.
    ended: Option<Fault>,
    /// Dropped after the store, whose place in the pool it stands for.
    _place: Place,
}

/// A store that holds an instance to its limits, armed to make one.
///
/// `own` are the budgets that its memory counts for beside that of all plugins.
/// The instance has to be made before `deadline`.
pub(super) fn new_store(
    runtime: &Runtime,
    stage: &str,
    vocabulary: Option<Arc<Vocabulary>>,
    own: Vec<Arc<MemoryBudget>>,
    deadline: Deadline,
) -> Store<HostState> {
    let limits = runtime.limits();
    let budgets = std::iter::once(Arc::clone(runtime.memory())).chain(own);
    let memory = MemoryLimiter::new(budgets.collect(), limits.memory_bytes);
    let state = HostState::new(stage, vocabulary, memory);
    let mut store = Store::new(runtime.engine(), state);
    store.limiter(|state| &mut state.memory);
    store.set_hostcall_fuel(host_call_bytes());
    store.epoch_deadline_callback(|store| {
        let state = store.data();
        Ok(if state.is_abandoned() || Instant::now() >= state.end {
            UpdateDeadline::Interrupt
        } else {
            UpdateDeadline::Continue(1)
        })
    });
    arm(&mut store, deadline);
    store
}

/// The fault that an error of a call is, or of the instantiation.
fn explain(
    stage: &str,
    function: &str,
    deadline: Deadline,
    left: Duration,
    error: &wasmtime::Error,
    state: &HostState,
) -> Fault {
    if state.is_abandoned() {
        return fault(stage, kind::LATE, "nobody waits for it any more");
    }
    fault::from_error(
        stage,
        function,
        deadline,
        left,
        error,
        state.log.last_error(),
    )
}

/// Gives what the store runs next until this deadline.
pub(super) fn arm(store: &mut Store<HostState>, deadline: Deadline) {
    store.data_mut().end = deadline.end();
    store.set_epoch_deadline(1);
}

impl Instance {
    /// Makes an instance of a plugin as the stage of a chain, within what is
    /// left of `total`. `vocabulary` is absent at upload, where no model is
    /// loaded.
    pub(super) fn new(
        runtime: &Runtime,
        linked: &Linked,
        stage: &str,
        vocabulary: Option<Arc<Vocabulary>>,
        belonging: Belonging,
        total: Deadline,
    ) -> Result<Self, InstanceError> {
        let limits = runtime.limits().clone();
        let deadline = Deadline::after(limits.open).or_sooner(total);
        let left = deadline.left();
        if left.is_zero() {
            let message = "there was no time left to make an instance";
            return Err(InstanceError::Fault(fault(stage, kind::LATE, message)));
        }
        let Belonging {
            budgets,
            place,
            wanted,
        } = belonging;
        let mut store = new_store(runtime, stage, vocabulary, budgets, deadline);
        store.data_mut().wanted = wanted;
        match linked.instantiate(&mut store) {
            Ok(guest) => Ok(Self {
                stage: stage.to_owned(),
                limits,
                store,
                guest,
                ended: None,
                _place: place,
            }),
            Err(error) if error.is::<PoolConcurrencyLimitError>() => {
                Err(InstanceError::Full(error.root_cause().to_string()))
            }
            Err(error) => {
                let function = Phase::Instantiate.function();
                let fault = explain(stage, function, deadline, left, &error, store.data());
                Err(InstanceError::Fault(fault))
            }
        }
    }

    pub(super) fn describe(&mut self) -> Result<Description, Fault> {
        // The record is one type per world.
        macro_rules! describe {
            ($guest:expr, $store:expr) => {{
                let said = $guest.sluice_sampling_plugin().call_describe($store)?;
                Description {
                    name: said.name,
                    version: said.version,
                    summary: said.summary,
                    params_schema: said.params_schema,
                }
            }};
        }
        let deadline = Deadline::after(self.limits.open);
        self.call(Phase::Describe, deadline, |guest, store| {
            Ok(match guest {
                Guest::Token(guest) => describe!(guest, store),
                Guest::Logits(guest) => describe!(guest, store),
                Guest::Sampler(guest) => describe!(guest, store),
            })
        })
    }

    pub(super) fn prepare(&mut self, total: Deadline) -> Result<(), Fault> {
        self.call(
            Phase::Prepare,
            Deadline::after(self.limits.prepare).or_sooner(total),
            |guest, store| match guest {
                Guest::Token(guest) => guest.sluice_sampling_plugin().call_prepare(store),
                Guest::Logits(guest) => guest.sluice_sampling_plugin().call_prepare(store),
                Guest::Sampler(guest) => guest.sluice_sampling_plugin().call_prepare(store),
            },
        )
    }

    /// What the last call carried over the boundary.
    pub(super) fn crossed(&self) -> Crossed {
        self.store.data().crossed
    }

    /// What the guest has said since the last time.
    pub(super) fn take_log(&mut self) -> Vec<LogLine> {
        self.store.data_mut().log.take()
    }

    /// Whether the guest has read the vocabulary.
    pub(super) fn has_read_vocabulary(&self) -> bool {
        self.store.data().has_read_vocabulary.get()
    }

    pub(super) fn open(
        &mut self,
        info: &SequenceInfo,
        total: Deadline,
    ) -> Result<Result<ResourceAny, OpenError>, Fault> {
        let deadline = Deadline::after(self.limits.open).or_sooner(total);
        self.call(Phase::Open, deadline, |guest, store| match guest {
            Guest::Token(_) => guest.token()?.call_open(store, info),
            Guest::Logits(_) => guest.logits()?.call_open(store, info),
            Guest::Sampler(_) => guest.sampler()?.call_open(store, info),
        })
    }

    /// Calls `plan`. Its edits replace those in `edits`.
    pub(super) fn plan(
        &mut self,
        sequence: ResourceAny,
        accepted: &[TokenId],
        deadline: Deadline,
        edits: &mut Edits,
    ) -> Result<Option<Decision>, Fault> {
        self.start_edits();
        let said = self.call(Phase::Plan, deadline, |guest, store| {
            guest.token()?.call_plan(store, sequence, accepted)
        })?;
        self.accept(said)?;
        self.take_edits(edits);
        let state = self.store.data_mut();
        state.crossed.enter(accepted);
        Ok(state.decision.take())
    }

    /// Calls `process` on a row. Its edits replace those in `edits`; the row
    /// that it returned, if any, is unchecked.
    pub(super) fn process(
        &mut self,
        sequence: ResourceAny,
        accepted: &[TokenId],
        row: Scanned<'_>,
        chance: Chance,
        deadline: Deadline,
        edits: &mut Edits,
    ) -> Result<Option<Vec<f32>>, Fault> {
        self.start_edits();
        let said = self.call_with_row(Phase::Process, row, chance, deadline, |guest, store| {
            guest.logits()?.call_process(store, sequence, accepted)
        })?;
        let new_row = self.accept(said)?;
        self.take_edits(edits);
        let crossed = &mut self.store.data_mut().crossed;
        crossed.enter(accepted);
        crossed.leave(new_row.as_deref().unwrap_or_default());
        Ok(new_row)
    }

    /// Calls `sample` on a row. The token is unchecked.
    pub(super) fn sample(
        &mut self,
        sequence: ResourceAny,
        accepted: &[TokenId],
        row: Scanned<'_>,
        chance: Chance,
        deadline: Deadline,
    ) -> Result<TokenId, Fault> {
        let said = self.call_with_row(Phase::Sample, row, chance, deadline, |guest, store| {
            guest.sampler()?.call_sample(store, sequence, accepted)
        })?;
        let token = self.accept(said)?;
        let crossed = &mut self.store.data_mut().crossed;
        crossed.enter(accepted);
        crossed.leave(&[token]);
        Ok(token)
    }

    /// A call that may read `row`.
    fn call_with_row<T>(
        &mut self,
        phase: Phase,
        row: Scanned<'_>,
        chance: Chance,
        deadline: Deadline,
        call: impl FnOnce(&Guest, &mut Store<HostState>) -> wasmtime::Result<T>,
    ) -> Result<T, Fault> {
        let state = self.store.data_mut();
        state.chance = chance;
        let loan = state.row.clone();
        loan.lend(row, || self.call(phase, deadline, call))
    }

    /// Every call of the guest: with its deadline armed anew, unless the
    /// instance has ended.
    fn call<T>(
        &mut self,
        phase: Phase,
        deadline: Deadline,
        call: impl FnOnce(&Guest, &mut Store<HostState>) -> wasmtime::Result<T>,
    ) -> Result<T, Fault> {
        if let Some(first) = &self.ended {
            let message = format!("the instance had ended before: {}", first.message);
            return Err(fault(&self.stage, kind::ENDED, message));
        }
        let left = deadline.left();
        if left.is_zero() {
            let message = format!(
                "what came before `{}` used up the limit of {:?} that they share",
                phase.function(),
                deadline.limit()
            );
            return Err(fault(&self.stage, kind::LATE, message));
        }
        let state = self.store.data_mut();
        state.phase = phase;
        state.crossed = Crossed::default();
        state.log.clear_error();
        arm(&mut self.store, deadline);
        call(&self.guest, &mut self.store).map_err(|error| {
            let function = phase.function();
            let state = self.store.data();
            let fault = explain(&self.stage, function, deadline, left, &error, state);
            self.ended = Some(fault.clone());
            fault
        })
    }

    /// The guest's own `err` is a fault of the sequence, not of the instance.
    fn accept<T>(&self, said: Result<T, String>) -> Result<T, Fault> {
        said.map_err(|message| fault(&self.stage, kind::ERROR, shorten(message)))
    }

    fn start_edits(&mut self) {
        let state = self.store.data_mut();
        state.edits.clear();
        state.decision = None;
    }

    fn take_edits(&mut self, edits: &mut Edits) {
        mem::swap(edits, &mut self.store.data_mut().edits);
    }
}
