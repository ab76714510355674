//! The memory that `prepare` leaves, as part of the component: what is built
//! from the vocabulary is built once, and every instance shares its pages
//! until it writes to them. Runs in the child process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use sluice_contract::phase::Phase;
use wasmtime::Store;
use wasmtime::component::{Component, ComponentNamedList, Instance, Lift, WasmList};
use wasmtime_wizer::{ComponentInstanceState, Wizer};

use super::deadline::Deadline;
use super::instance::{arm, new_store};
use super::loaded::Kind;
use super::runtime::Runtime;
use super::state::HostState;
use super::vocabulary::Vocabulary;

/// Any patch release of the contract is found under its first version.
const PLUGIN: &str = "sluice:sampling/plugin@0.1.0";

/// The component with the memory that its `prepare` left behind. `run` is
/// called when code is about to run.
///
/// # Errors
/// When the component has a form that cannot be captured, or `prepare` fails.
pub(super) fn take(
    runtime: &Arc<Runtime>,
    kind: Kind,
    component: &[u8],
    vocabulary: &Arc<Vocabulary>,
    limit: Duration,
    run: impl FnOnce(),
) -> wasmtime::Result<Vec<u8>> {
    let wizer = Wizer::new();
    let (context, instrumented) = wizer.instrument_component(component)?;
    let instrumented = Component::from_binary(runtime.engine(), &instrumented)?;
    run();
    let mut store = new_store(
        runtime,
        "snapshot",
        Some(Arc::clone(vocabulary)),
        Vec::new(),
        Deadline::after(runtime.limits().open),
    );
    let instance = runtime
        .linker(kind, &instrumented)?
        .instantiate(&mut store, &instrumented)?;
    store.data_mut().phase = Phase::Prepare;
    arm(&mut store, Deadline::after(limit));
    call::<()>(&mut store, &instance, PLUGIN, "prepare")?;
    // The whole memory passes through one call.
    store.set_hostcall_fuel(usize::MAX);
    let mut state = State {
        store,
        instance,
        error: None,
    };
    let snapshot = wizer
        .snapshot_component(&context, &mut state)
        .now_or_never();
    match (state.error, snapshot) {
        (Some(error), _) => Err(error),
        (None, Some(snapshot)) => snapshot,
        (None, None) => Err(wasmtime::Error::msg("the snapshot waits for something")),
    }
}

/// Calls an exported function without parameters.
fn call<R>(
    store: &mut Store<HostState>,
    instance: &Instance,
    interface: &str,
    function: &str,
) -> wasmtime::Result<R>
where
    R: Return,
{
    let missing = || wasmtime::Error::msg(format!("no export {interface}#{function}"));
    let (_, interface) = instance
        .get_export(&mut *store, None, interface)
        .ok_or_else(missing)?;
    let (_, function) = instance
        .get_export(&mut *store, Some(&interface), function)
        .ok_or_else(missing)?;
    let function = instance.get_typed_func::<(), R::List>(&mut *store, function)?;
    function.call(&mut *store, ()).map(R::from_list)
}

/// What a function returns, and the list of results that stands for it.
trait Return: Sized {
    type List: ComponentNamedList + Lift + Send + Sync + 'static;
    fn from_list(list: Self::List) -> Self;
}

impl Return for () {
    type List = ();
    fn from_list((): ()) {}
}

macro_rules! returns {
    ($($type:ty),*) => {$(
        impl Return for $type {
            type List = ($type,);
            fn from_list((value,): ($type,)) -> Self {
                value
            }
        }
    )*};
}

returns!(i32, i64, f32, f64, WasmList<u8>);

/// The instance as it is read. Reading cannot fail by its trait, so the first
/// error is kept.
struct State {
    store: Store<HostState>,
    instance: Instance,
    error: Option<wasmtime::Error>,
}

impl State {
    fn call<R: Return>(&mut self, instance: &str, func: &str) -> Option<R> {
        let result = call(&mut self.store, &self.instance, instance, func);
        result.map_err(|error| self.error.get_or_insert(error)).ok()
    }
}

impl ComponentInstanceState for State {
    async fn call_func_ret_list_u8(
        &mut self,
        instance: &str,
        func: &str,
        contents: impl FnOnce(&[u8]) + Send,
    ) {
        match self.call::<WasmList<u8>>(instance, func) {
            Some(list) => contents(list.as_le_slice(&self.store)),
            None => contents(&[]),
        }
    }

    async fn call_func_ret_s32(&mut self, instance: &str, func: &str) -> i32 {
        self.call(instance, func).unwrap_or_default()
    }

    async fn call_func_ret_s64(&mut self, instance: &str, func: &str) -> i64 {
        self.call(instance, func).unwrap_or_default()
    }

    async fn call_func_ret_f32(&mut self, instance: &str, func: &str) -> u32 {
        self.call(instance, func).map_or(0, f32::to_bits)
    }

    async fn call_func_ret_f64(&mut self, instance: &str, func: &str) -> u64 {
        self.call(instance, func).map_or(0, f64::to_bits)
    }
}
