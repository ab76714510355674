//! The system that guests of other languages ask for, without anything in it.
//!
//! Interpreters import WASI whether a plugin uses it or not. Here they find no
//! files, arguments, variables or network; a clock that stands still, chance
//! that is always zero, and standard output and error that end in the
//! plugin's log. All else is a fault: above all waiting, which would hold the
//! thread past any deadline. So a plugin's results follow from the contract's
//! imports alone, in whatever language it is written.

use std::borrow::Cow;

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker, Resource, ResourceType, Val};
use wasmtime::{Result, StoreContextMut};

use super::fault::{HostFault, kind};
use super::state::HostState;

/// The packages of WASI 0.2 that a guest may import.
const PACKAGES: [&str; 6] = ["cli", "clocks", "filesystem", "io", "random", "sockets"];

/// Bytes that an output stream takes at once.
const WRITE_BYTES: u64 = 4096;
/// The most random bytes of one call.
const MAX_RANDOM_BYTES: u64 = 1 << 16;

/// The streams that exist; the number is the resource's representation.
const STDIN: u32 = 0;
const STDOUT: u32 = 1;
const STDERR: u32 = 2;

/// A stream. No other resource is ever made.
struct Stream;

/// The interface of an import's name, such as `cli/environment`, if plugins may
/// import it.
pub(super) fn interface(import: &str) -> Option<&str> {
    let (interface, version) = import.strip_prefix("wasi:")?.split_once('@')?;
    let (package, _) = interface.split_once('/')?;
    let version = semver::Version::parse(version).ok()?;
    let known = (version.major, version.minor) == (0, 2) && version.pre.is_empty();
    (known && PACKAGES.contains(&package)).then_some(interface)
}

/// The linker with what `component` imports of WASI, in the versions and with
/// the types that it names.
pub(super) fn complete<'a>(
    linker: &'a Linker<HostState>,
    component: &Component,
) -> Result<Cow<'a, Linker<HostState>>> {
    let mut linker = Cow::Borrowed(linker);
    let engine = component.engine();
    for (import, item) in component.component_type().imports(engine) {
        let (Some(interface), ComponentItem::ComponentInstance(instance)) =
            (interface(import), item.ty)
        else {
            continue;
        };
        let mut defined = linker.to_mut().instance(import)?;
        for (name, item) in instance.exports(engine) {
            match item.ty {
                ComponentItem::Resource(_) => {
                    defined.resource(name, ResourceType::host::<Stream>(), |_, _| Ok(()))?;
                }
                ComponentItem::ComponentFunc(_) => {
                    let interface = interface.to_owned();
                    let function = name.to_owned();
                    defined.func_new(name, move |store, _, arguments, results| {
                        let answer = answer(&interface, &function, arguments, store)?;
                        if let Some(result) = results.first_mut() {
                            *result = answer;
                        }
                        Ok(())
                    })?;
                }
                _ => {}
            }
        }
    }
    Ok(linker)
}

/// What a function returns.
fn answer(
    interface: &str,
    function: &str,
    arguments: &[Val],
    mut store: StoreContextMut<'_, HostState>,
) -> Result<Val> {
    let streamed = take_stream(arguments, &mut store)?;
    let none = || Val::Option(None);
    let empty = || Val::List(Vec::new());
    let done = || Val::Result(Ok(None));
    let stream = |number, store| {
        let stream = Resource::<Stream>::new_own(number);
        stream.try_into_resource_any(store).map(Val::Resource)
    };
    Ok(match (interface, function) {
        ("cli/environment", "get-environment" | "get-arguments")
        | ("filesystem/preopens", "get-directories") => empty(),
        ("cli/environment", "initial-cwd")
        | ("cli/terminal-stdin" | "cli/terminal-stdout" | "cli/terminal-stderr", _) => none(),
        ("cli/stdin", _) => stream(STDIN, store)?,
        ("cli/stdout", _) => stream(STDOUT, store)?,
        ("cli/stderr", _) => stream(STDERR, store)?,
        ("clocks/monotonic-clock", "now") => Val::U64(0),
        ("clocks/monotonic-clock", "resolution") => Val::U64(1),
        ("clocks/wall-clock", "now") => datetime(0),
        ("clocks/wall-clock", "resolution") => datetime(1),
        ("random/random", "get-random-u64") | ("random/insecure", "get-insecure-random-u64") => {
            Val::U64(0)
        }
        ("random/random", "get-random-bytes")
        | ("random/insecure", "get-insecure-random-bytes") => zeros(arguments)?,
        ("random/insecure-seed", _) => Val::Tuple(vec![Val::U64(0), Val::U64(0)]),
        ("io/streams", "[method]input-stream.read" | "[method]input-stream.blocking-read") => {
            closed()
        }
        ("io/streams", "[method]output-stream.check-write") => {
            Val::Result(Ok(Some(Box::new(Val::U64(WRITE_BYTES)))))
        }
        (
            "io/streams",
            "[method]output-stream.write" | "[method]output-stream.blocking-write-and-flush",
        ) => {
            write(streamed, arguments, store.data_mut());
            done()
        }
        ("io/streams", "[method]output-stream.flush" | "[method]output-stream.blocking-flush") => {
            done()
        }
        ("cli/exit", _) => return Err(refused("the plugin ended itself".to_owned())),
        _ => {
            return Err(refused(format!(
                "`wasi:{interface}` `{function}` was called; plugins have no files and no \
                 network, and cannot wait"
            )));
        }
    })
}

fn refused(message: String) -> wasmtime::Error {
    HostFault::new(kind::INVALID_CALL, message).into()
}

fn datetime(nanoseconds: u32) -> Val {
    Val::Record(vec![
        ("seconds".to_owned(), Val::U64(0)),
        ("nanoseconds".to_owned(), Val::U32(nanoseconds)),
    ])
}

fn closed() -> Val {
    let error = Val::Variant("closed".to_owned(), None);
    Val::Result(Err(Some(Box::new(error))))
}

fn zeros(arguments: &[Val]) -> Result<Val> {
    match arguments {
        [Val::U64(n)] if *n <= MAX_RANDOM_BYTES => Ok(Val::List(vec![Val::U8(0); *n as usize])),
        _ => Err(refused(format!(
            "more than {MAX_RANDOM_BYTES} random bytes were asked for at once"
        ))),
    }
}

/// The stream that a method is called on. Taking it ends the loan.
fn take_stream(
    arguments: &[Val],
    store: &mut StoreContextMut<'_, HostState>,
) -> Result<Option<u32>> {
    let mut number = None;
    for argument in arguments {
        if let Val::Resource(stream) = argument {
            let stream = Resource::<Stream>::try_from_resource_any(*stream, &mut *store)?;
            number = Some(stream.rep());
        }
    }
    Ok(number)
}

/// What is written becomes messages of the plugin: errors from standard error.
fn write(stream: Option<u32>, arguments: &[Val], state: &mut HostState) {
    let Some(Val::List(values)) = arguments.last() else {
        return;
    };
    let byte = |value: &Val| match value {
        Val::U8(byte) => Some(*byte),
        _ => None,
    };
    let bytes: Vec<u8> = values.iter().filter_map(byte).collect();
    let text = String::from_utf8_lossy(&bytes);
    let level = match stream {
        Some(STDERR) => tracing::Level::ERROR,
        _ => tracing::Level::INFO,
    };
    state.log.print(level, &text);
}

#[cfg(test)]
mod tests {
    use super::interface;

    #[test]
    fn wasi_is_known_by_package_and_version() {
        assert_eq!(interface("wasi:io/poll@0.2.0"), Some("io/poll"));
        assert_eq!(
            interface("wasi:cli/terminal-stdin@0.2.9"),
            Some("cli/terminal-stdin")
        );
        for unknown in [
            "wasi:http/types@0.2.0",
            "wasi:io/poll@0.3.0",
            "wasi:io/poll@0.2.0-rc-2023",
            "wasi:io/poll",
            "sluice:io/poll@0.2.0",
        ] {
            assert_eq!(interface(unknown), None, "{unknown}");
        }
    }
}
