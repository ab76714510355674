//! The process that turns a stranger's bytes into code and a description. It
//! may crash, hang or run out of memory: the server only sees it fail.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};
use wasmtime::component::Component;

use super::fault::kind;
use super::inspect::{self, Form};
use super::instance::{Description, Instance, InstanceError, Linked, shorten};
use super::loaded::Kind;
use super::runtime::{Limits, MAX_MEMORIES, Runtime, STACK_BYTES};
use super::schema::ParamsSchema;
use super::upload::{UploadCode, UploadError};
use crate::engine::Fault;

/// Processor time of one compilation. The largest known honest plugin, a
/// Python interpreter, takes about half of it.
pub(super) const CPU_SECONDS: u64 = 10;
/// Address space of one compilation, beside what the process has at its start.
pub(super) const COMPILE_BYTES: u64 = 2 << 30;
/// What running adds: each memory reserves 4 GiB and its guards.
const RUN_BYTES: u64 = MAX_MEMORIES as u64 * (5 << 30);
/// Behind everything that answers requests.
const NICENESS: i32 = 10;

const MAX_NAME_BYTES: usize = 64;
const MAX_SUMMARY_BYTES: usize = 500;

/// What the child found, as it tells the server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) version: semver::Version,
    pub(super) summary: String,
    pub(super) params_schema: serde_json::Value,
}

/// The whole of the child's output.
pub(super) type Outcome = Result<Report, UploadError>;

/// The body of the hidden subcommand `plugin-compile`: reads an upload from
/// standard input, writes its code to `output` and a report to standard
/// output. Call it before anything else of the process is set up: it limits
/// the process first.
pub fn compile_child(output: &Path) -> ExitCode {
    let memory = limit_process();
    let output = output.to_owned();
    let outcome = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || read_and_compile(&output, memory))
        .map(std::thread::JoinHandle::join);
    // A panic has been reported on standard error.
    let Ok(Ok(outcome)) = outcome else {
        return ExitCode::FAILURE;
    };
    let mut stdout = io::stdout().lock();
    let written = serde_json::to_writer(&mut stdout, &outcome)
        .map_err(io::Error::from)
        .and_then(|()| stdout.flush());
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn read_and_compile(output: &Path, memory: Option<AddressSpace>) -> Outcome {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|error| internal("read the upload", &error))?;
    compile(&bytes, output, memory)
}

fn compile(bytes: &[u8], output: &Path, memory: Option<AddressSpace>) -> Outcome {
    let form = inspect::sniff(bytes)?;
    inspect::check_length(bytes)?;
    let encoded;
    let bytes = match form {
        Form::Component => bytes,
        Form::Module => {
            encoded = inspect::componentize(bytes)?;
            &encoded
        }
    };
    let kind = inspect::find_kind(bytes)?;
    let runtime =
        Runtime::on_demand(Limits::default()).map_err(|error| internal("compile", &error))?;
    let component = Component::from_binary(runtime.engine(), bytes).map_err(|error| {
        UploadError::new(
            UploadCode::InvalidComponent,
            shorten(format!("the component cannot be compiled: {error:#}")),
        )
    })?;
    let code = component
        .serialize()
        .map_err(|error| internal("compile", &error))?;
    fs::write(output, code).map_err(|error| internal("store the code", &error))?;
    if let Some(memory) = memory {
        memory.extend();
    }
    check_description(kind, describe(&runtime, kind, &component)?)
}

/// Makes one instance, which checks the types, and asks it for its description.
fn describe(
    runtime: &Arc<Runtime>,
    kind: Kind,
    component: &Component,
) -> Result<Description, UploadError> {
    let linked = Linked::new(runtime, kind, component).map_err(|error| {
        UploadError::new(
            UploadCode::WrongType,
            shorten(format!(
                "the component does not fit the contract's {kind}: {error:#}"
            )),
        )
    })?;
    let permit = runtime
        .reserve(1)
        .and_then(|mut permits| permits.pop())
        .ok_or_else(|| internal("make an instance", &"no room for one"))?;
    let mut instance =
        Instance::new(runtime, &linked, "describe", None, permit).map_err(|error| match error {
            InstanceError::Full(message) => UploadError::new(UploadCode::TooComplex, message),
            InstanceError::Fault(fault) => refuse(&fault),
        })?;
    instance.describe().map_err(|fault| refuse(&fault))
}

fn refuse(fault: &Fault) -> UploadError {
    let code = match fault.kind {
        kind::MEMORY => UploadCode::TooComplex,
        _ => UploadCode::DescribeFailed,
    };
    UploadError::new(code, format!("the plugin failed: {}", fault.message))
}

fn check_description(kind: Kind, said: Description) -> Outcome {
    let invalid = |message: String| UploadError::new(UploadCode::InvalidDescription, message);
    let name_fits = (1..=MAX_NAME_BYTES).contains(&said.name.len())
        && said
            .name
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if !name_fits {
        return Err(invalid(shorten(format!(
            "the plugin's name is {:?}; it must be 1 to {MAX_NAME_BYTES} lower-case letters, \
             digits and dashes",
            said.name
        ))));
    }
    let version = semver::Version::parse(&said.version).map_err(|error| {
        invalid(shorten(format!(
            "the plugin's version is {:?}, which is not a semantic version: {error}",
            said.version
        )))
    })?;
    if said.summary.trim().is_empty() || said.summary.len() > MAX_SUMMARY_BYTES {
        return Err(invalid(format!(
            "the plugin's summary has {} bytes; it must have 1 to {MAX_SUMMARY_BYTES}",
            said.summary.len()
        )));
    }
    let (params_schema, _) = ParamsSchema::parse(&said.params_schema)
        .map_err(|message| invalid(format!("the plugin's params-schema is refused: {message}")))?;
    Ok(Report {
        kind,
        name: said.name,
        version,
        summary: said.summary,
        params_schema,
    })
}

fn internal(what: &str, error: &dyn std::fmt::Display) -> UploadError {
    UploadError::new(UploadCode::Internal, format!("cannot {what}: {error}"))
}

/// The address space that this process may take.
#[derive(Clone, Copy)]
struct AddressSpace {
    run_bytes: u64,
}

impl AddressSpace {
    /// Lets the process reserve the memories that running needs.
    fn extend(self) {
        let limit = Rlimit {
            current: Some(self.run_bytes),
            maximum: Some(self.run_bytes),
        };
        // Without it the instance cannot be made, and says so.
        let _ = rustix::process::setrlimit(Resource::As, limit);
    }
}

/// Limits processor time, address space and priority. What a system does not
/// have is left out: the parent's timeout holds everywhere.
fn limit_process() -> Option<AddressSpace> {
    let _ = rustix::process::nice(NICENESS);
    let set = |resource, current, maximum| {
        let limit = Rlimit {
            current: Some(current),
            maximum: Some(maximum),
        };
        rustix::process::setrlimit(resource, limit)
    };
    let _ = set(Resource::Core, 0, 0);
    let _ = set(Resource::Cpu, CPU_SECONDS, CPU_SECONDS + 1);
    let start = address_space_bytes()?;
    let run_bytes = start + COMPILE_BYTES + RUN_BYTES;
    set(Resource::As, start + COMPILE_BYTES, run_bytes).ok()?;
    Some(AddressSpace { run_bytes })
}

/// The address space in use, where the system tells.
fn address_space_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmSize:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    type Change = fn(&mut Description);

    fn description(change: impl FnOnce(&mut Description)) -> Outcome {
        let mut said = Description {
            name: "counter-2".into(),
            version: "0.1.0".into(),
            summary: "Counts.".into(),
            params_schema: r#"{"type": "object"}"#.into(),
        };
        change(&mut said);
        check_description(Kind::Sampler, said)
    }

    #[test]
    fn a_description_names_what_is_wrong_with_it() {
        assert!(description(|_| {}).is_ok());
        let refused: [(Change, &str); 7] = [
            (|d| d.name = "Counter".into(), "\"Counter\""),
            (|d| d.name = String::new(), "\"\""),
            (|d| d.version = "0.1.x".into(), "\"0.1.x\""),
            (|d| d.summary = "  ".into(), "summary"),
            (|d| d.params_schema = "{".into(), "params-schema"),
            (
                |d| d.params_schema = r#"{"type": "abject"}"#.into(),
                "params-schema",
            ),
            (
                |d| d.params_schema = r#"{"$ref": "file:///etc/passwd"}"#.into(),
                "params-schema",
            ),
        ];
        for (change, words) in refused {
            let Err(error) = description(change) else {
                panic!("{words} was not refused");
            };
            assert_eq!(error.code(), "invalid_description", "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
