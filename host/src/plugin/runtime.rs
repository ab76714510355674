//! The one configuration of wasmtime: sizes, deadlines, the epoch's ticker,
//! and what each kind of plugin may import.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::bindings::{logits_plugin::LogitsPlugin, sampler::SamplerPlugin, token::TokenPlugin};
use super::loaded::Kind;
use super::memory::MemoryBudget;
use super::named::Named;
use super::pool::{Permit, Pool, Room};
use super::record::{Breaker, Totals};
use super::state::HostState;
use super::wasi;

/// Stack of every thread that calls guests. Their own frames take at most
/// [`MAX_WASM_STACK_BYTES`]; host functions called from the deepest of them
/// run below.
pub const STACK_BYTES: usize = 8 << 20;

/// A guest that recurses deeper than this traps. Interpreters need more than
/// wasmtime's default of 512 KiB.
const MAX_WASM_STACK_BYTES: usize = 1 << 20;

/// The most data a guest may hand to one host call: a row of 262,144 values
/// is 1 MiB, and no interrupt reaches a host call that copies.
const HOST_CALL_BYTES: usize = 8 << 20;

/// How often a guest that runs is asked whether it may go on; more often costs
/// more wake-ups than it is worth beside the shortest deadline of 50 ms.
const TICK: Duration = Duration::from_millis(5);

/// Core instances of one component: a Python guest has 14.
pub(super) const MAX_CORE_INSTANCES: u32 = 20;
/// Memories of one component: 1 is usual, 2 are known.
pub(super) const MAX_MEMORIES: u32 = 4;
/// Tables of one component; some toolchains make one per core instance.
pub(super) const MAX_TABLES: u32 = 20;
/// Elements of all tables of one component: an interpreter has ten thousand.
pub(super) const MAX_TABLE_ELEMENTS: usize = 65_536;

/// Requests with uploaded plugins that may wait for their turn to open; each
/// holds a thread meanwhile.
pub(super) const MAX_OPENING: u32 = 64;
/// Requests that may wait for the instances of one uploaded plugin, likewise.
const MAX_WAITING_FOR_ONE: u32 = 16;

/// What plugins may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Instances alive at once: one for each stage of each running request, or
    /// of each choice where faults are skipped.
    /// Default 512: 128 requests with a chain of four. Each reserves 16 GiB
    /// of address space, which costs nothing until it is used.
    pub max_instances: u32,
    /// Instances alive at once of uploaded plugins of one name. Default 256, half
    /// of all: nobody's plugin can take the room of everybody's.
    pub max_instances_of_one: u32,
    /// How long a request waits for instances and their memory. Default 2 s:
    /// sequences end all the time, and a client that is sent away comes back at
    /// once.
    pub wait: Duration,
    /// Deadline of one position's `plan` calls together, and again of its
    /// `process` and `sample` calls. Default 50 ms: it counts wall time, and
    /// less hits innocents on a busy machine.
    pub call: Duration,
    /// How long the batch waits for the plans of a request that lets them be
    /// late (`on_fault: wait`). Default 10 ms, less than the shortest step:
    /// its neighbours never wait, and it loses nothing while its plans are
    /// faster than that.
    pub patience: Duration,
    /// Deadline of one position's `plan` calls that may be late. Default 5 s:
    /// for work that no step could wait for, such as a search.
    pub late: Duration,
    /// What the stages of one sequence may take in all. Default 120 s: 4,096
    /// tokens at 29 ms each. Stages that always stay just within their
    /// deadline would slow a batch down without end.
    pub total: Duration,
    /// Deadline of `open` and `describe`. Default 1 s.
    pub open: Duration,
    /// Deadline of `prepare`. Default 10 s: a token trie takes one.
    pub prepare: Duration,
    /// Memory of one instance. Default 256 MiB: a grammar over 262,144 tokens
    /// needs 152.
    pub memory_bytes: usize,
    /// Memory of all instances together, of which those of uploaded plugins of
    /// one name get half at most. Default 4 GiB.
    pub total_memory_bytes: usize,
    /// Size of an upload. Default 64 MiB: a Python plugin has 18.
    pub upload_bytes: usize,
    /// Plugins registered at once, those aside that came with the server. Default
    /// 2,000: each keeps an open file and a place in the cache of compiled code.
    pub max_plugins: u32,
    /// Processor time of compiling an upload, in whole seconds. Default 40 s:
    /// the largest known honest plugins are interpreters, JavaScript's and
    /// Python's, which take more than ten seconds on a slow machine.
    pub compile: Duration,
    /// Address space of compiling an upload, beside what the process has at its
    /// start. Default 2 GiB: an interpreter's takes one.
    pub compile_bytes: u64,
    /// When a plugin has failed too often. What came with the server is never
    /// taken from everybody for what one request does with it.
    pub breaker: Breaker,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_instances: 512,
            max_instances_of_one: 256,
            wait: Duration::from_secs(2),
            call: Duration::from_millis(50),
            patience: Duration::from_millis(10),
            late: Duration::from_secs(5),
            total: Duration::from_mins(2),
            open: Duration::from_secs(1),
            prepare: Duration::from_secs(10),
            memory_bytes: 256 << 20,
            total_memory_bytes: 4 << 30,
            upload_bytes: 64 << 20,
            max_plugins: 2000,
            compile: Duration::from_secs(40),
            compile_bytes: 2 << 30,
            breaker: Breaker::default(),
        }
    }
}

/// The plugin runtime could not start.
#[derive(Debug, thiserror::Error)]
#[error("the plugin runtime cannot start: {0}")]
pub struct RuntimeError(String);

/// The wasmtime engine with its ticker, and the imports of each kind.
pub struct Runtime {
    engine: Engine,
    limits: Limits,
    linkers: Linkers,
    memory: Arc<MemoryBudget>,
    pool: Arc<Pool>,
    /// Of each name of uploaded plugins.
    instances_of_one: Named<Pool>,
    memory_of_one: Named<MemoryBudget>,
    /// What the plugins of each name have done.
    totals: Named<Totals>,
    /// One permit: that of the request with uploaded plugins that opens.
    turn: Arc<Pool>,
}

struct Linkers {
    token: Linker<HostState>,
    logits: Linker<HostState>,
    sampler: Linker<HostState>,
}

impl Runtime {
    /// Reserves the pool that instances are made in and starts the ticker's
    /// thread, which ends with the runtime.
    ///
    /// # Errors
    /// When the system refuses the address space or the thread.
    pub fn new(limits: Limits) -> Result<Arc<Self>, RuntimeError> {
        let mut config = compile_settings();
        config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(&limits)));
        Self::with_config(&config, limits)
    }

    /// A runtime that reserves nothing ahead, for a process that makes one
    /// instance. Code compiled in it runs in one made by [`Runtime::new`].
    pub(super) fn on_demand(limits: Limits) -> Result<Arc<Self>, RuntimeError> {
        Self::with_config(&compile_settings(), limits)
    }

    fn with_config(config: &Config, limits: Limits) -> Result<Arc<Self>, RuntimeError> {
        let error = |error: wasmtime::Error| RuntimeError(format!("{error:#}"));
        let engine = Engine::new(config).map_err(error)?;
        start_ticker(&engine)?;
        let linkers = Linkers::new(&engine).map_err(error)?;
        Ok(Arc::new(Self {
            engine,
            linkers,
            memory: Arc::new(MemoryBudget::new(limits.total_memory_bytes)),
            pool: Arc::new(Pool::new(limits.max_instances, u32::MAX)),
            instances_of_one: Named::default(),
            memory_of_one: Named::default(),
            totals: Named::default(),
            turn: Arc::new(Pool::new(1, MAX_OPENING)),
            limits,
        }))
    }

    /// The limits this runtime holds plugins to.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Memory that all instances together have now, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory.used_bytes()
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What a component of this kind may import.
    pub(super) fn linker(
        &self,
        kind: Kind,
        component: &Component,
    ) -> wasmtime::Result<Cow<'_, Linker<HostState>>> {
        let linker = match kind {
            Kind::TokenProcessor => &self.linkers.token,
            Kind::LogitsProcessor => &self.linkers.logits,
            Kind::Sampler => &self.linkers.sampler,
        };
        wasi::complete(linker, component)
    }

    pub(super) fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    /// Room for the instances of all plugins.
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// What the uploaded plugins of this name share.
    pub(super) fn room(&self, name: &str) -> Room {
        let limits = self.limits();
        Room {
            instances: self.instances_of_one.of(name, || {
                Pool::new(limits.max_instances_of_one, MAX_WAITING_FOR_ONE)
            }),
            // Half, so that one plugin cannot take everybody's.
            memory: self
                .memory_of_one
                .of(name, || MemoryBudget::new(limits.total_memory_bytes / 2)),
        }
    }

    /// Where the plugins of this name count what they have done.
    pub(super) fn totals(&self, name: &str) -> Arc<Totals> {
        self.totals.of(name, Totals::default)
    }

    /// Waits for the turn to open guests of strangers until `end`, or gives up at
    /// once when too many wait already.
    pub(super) fn turn(&self, end: Instant) -> Option<Vec<Permit>> {
        self.turn.reserve(1, end)
    }
}

pub(super) fn host_call_bytes() -> usize {
    HOST_CALL_BYTES
}

/// Everything that compiled code depends on: the child that compiles and the
/// server that runs share it.
///
/// One of wasmtime's choices is kept on purpose: NaN canonicalisation stays
/// off. It triples row arithmetic, and a row with a NaN is refused anyway.
fn compile_settings() -> Config {
    let mut config = Config::new();
    config.epoch_interruption(true);
    // Its results differ between processors.
    config.wasm_relaxed_simd(false);
    config.max_wasm_stack(MAX_WASM_STACK_BYTES);
    config
}

fn pool(limits: &Limits) -> PoolingAllocationConfig {
    let n = limits.max_instances;
    let mut pool = PoolingAllocationConfig::new();
    // As much for each instance as a component may have: what one takes beyond an
    // average others would lack. It is address space, and no memory until used.
    pool.total_component_instances(n)
        .total_core_instances(n.saturating_mul(MAX_CORE_INSTANCES))
        .total_memories(n.saturating_mul(MAX_MEMORIES))
        .total_tables(n.saturating_mul(MAX_TABLES))
        .max_core_instances_per_component(MAX_CORE_INSTANCES)
        .max_memories_per_component(MAX_MEMORIES)
        .max_tables_per_component(MAX_TABLES)
        .max_tables_per_module(MAX_TABLES)
        .table_elements(MAX_TABLE_ELEMENTS)
        .max_memory_size(limits.memory_bytes);
    pool
}

/// The ticker has a thread of its own: a task on an executor would wait for
/// the very guest that it should interrupt.
fn start_ticker(engine: &Engine) -> Result<(), RuntimeError> {
    let engine = engine.weak();
    std::thread::Builder::new()
        .name("plugin-ticker".to_owned())
        .spawn(move || {
            while let Some(engine) = engine.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(TICK);
            }
        })
        .map_err(|error| RuntimeError(format!("no thread for the ticker: {error}")))?;
    Ok(())
}

impl Linkers {
    fn new(engine: &Engine) -> wasmtime::Result<Self> {
        let mut token = Linker::new(engine);
        TokenPlugin::add_to_linker::<_, HasSelf<_>>(&mut token, |state: &mut HostState| state)?;
        let mut logits = Linker::new(engine);
        LogitsPlugin::add_to_linker::<_, HasSelf<_>>(&mut logits, |state: &mut HostState| state)?;
        let mut sampler = Linker::new(engine);
        SamplerPlugin::add_to_linker::<_, HasSelf<_>>(&mut sampler, |state: &mut HostState| state)?;
        Ok(Self {
            token,
            logits,
            sampler,
        })
    }
}
