//! The process that turns a stranger's bytes into code and a description. It
//! may crash, hang or run out of memory: the server only sees it fail.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};
use wasmtime::component::Component;

use super::deadline::Deadline;
use super::fault::{kind, shorten};
use super::inspect;
use super::instance::{Belonging, Description, Instance, InstanceError, Linked};
use super::loaded::Kind;
use super::runtime::{Limits, MAX_MEMORIES, MAX_TABLES, Runtime, STACK_BYTES};
use super::schema::ParamsSchema;
use super::snapshot;
use super::upload::{UploadCode, UploadError};
use super::vocabulary::Vocabulary;
use super::vocabulary_file;
use crate::engine::Fault;

/// What `prepare` may take of it and of the clock, once code is compiled.
const PREPARE_SECONDS: u64 = 5;
/// What running adds: each memory reserves 4 GiB and its guards.
const RUN_BYTES: u64 = MAX_MEMORIES as u64 * (5 << 30);
/// Behind everything that answers requests.
const NICENESS: i32 = 10;

const MAX_NAME_BYTES: usize = 64;
const MAX_SUMMARY_BYTES: usize = 500;

/// What a child process is to do.
#[derive(Clone, Debug, clap::Args)]
pub struct CompileTask {
    /// Where the code goes.
    pub output: PathBuf,
    /// The vocabulary of the loaded model, in a file that the server wrote.
    #[arg(long)]
    pub vocabulary: Option<PathBuf>,
    /// Whether the code's memory is to be what `prepare` leaves; the
    /// description is known then.
    #[arg(long, requires = "vocabulary")]
    pub snapshot: bool,
    /// Whether it came with the server, which waits for it at its start.
    #[arg(long)]
    pub shipped: bool,
    /// Processor time of one compilation.
    #[arg(long)]
    pub compile_seconds: u64,
    /// Address space of one compilation, beside what the process has at its
    /// start.
    #[arg(long)]
    pub compile_bytes: u64,
    /// Memory of one instance.
    #[arg(long)]
    pub memory_bytes: u64,
    /// Deadline of `describe`, in milliseconds.
    #[arg(long)]
    pub open_ms: u64,
    /// The process that waits for the answer.
    #[arg(long)]
    pub parent: u32,
}

impl CompileTask {
    /// The command line that says so.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec![self.output.clone().into_os_string()];
        for (name, value) in [
            ("--compile-seconds", self.compile_seconds),
            ("--compile-bytes", self.compile_bytes),
            ("--memory-bytes", self.memory_bytes),
            ("--open-ms", self.open_ms),
            ("--parent", self.parent.into()),
        ] {
            arguments.extend([name.into(), value.to_string().into()]);
        }
        if let Some(path) = &self.vocabulary {
            arguments.extend(["--vocabulary".into(), path.clone().into_os_string()]);
        }
        if self.snapshot {
            arguments.push("--snapshot".into());
        }
        if self.shipped {
            arguments.push("--shipped".into());
        }
        arguments
    }
}

/// What the child found, as it tells the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) version: semver::Version,
    pub(super) summary: String,
    pub(super) params_schema: serde_json::Value,
    /// Whether `prepare` reads the vocabulary, so that a snapshot saves time.
    pub(super) prepares: bool,
    /// Whether another try would find the same.
    pub(super) is_final: bool,
}

/// The whole of the child's output.
pub(super) type Outcome = Result<Report, UploadError>;

/// That of a child that takes a snapshot: false if the component has a form
/// that allows none.
pub(super) type SnapshotOutcome = Result<bool, UploadError>;

/// The body of the hidden subcommand `plugin-compile`: reads an upload from
/// standard input, writes its code to a file and a report to standard output.
/// Call it before anything else of the process is set up: it limits the
/// process first.
pub fn compile_child(task: &CompileTask) -> ExitCode {
    if task.snapshot {
        run(task, snapshot_of)
    } else {
        run(task, compile)
    }
}

/// What is done with an upload.
type Work<R> = fn(&[u8], &CompileTask, Option<ProcessLimits>) -> Result<R, UploadError>;

/// Does one of the two tasks in a limited process.
fn run<R>(task: &CompileTask, work: Work<R>) -> ExitCode
where
    R: Serialize + Send + 'static,
{
    if !end_with(task.parent) {
        return ExitCode::FAILURE;
    }
    if !task.shipped {
        let _ = rustix::process::nice(NICENESS);
    }
    let limits = limit_process(task);
    let task = task.clone();
    let outcome = std::thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || work(&read_upload()?, &task, limits))
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

/// Lets this process end when its parent does, however that happens: nobody
/// reads the answer then, and the next server must not find a file that is
/// still being written. False if the parent has gone already.
fn end_with(parent: u32) -> bool {
    // Where the system has no such signal the process ends with its limits.
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    std::os::unix::process::parent_id() == parent
}

fn read_upload() -> Result<Vec<u8>, UploadError> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|error| internal("read the upload", &error))?;
    Ok(bytes)
}

fn compile(bytes: &[u8], task: &CompileTask, limits: Option<ProcessLimits>) -> Outcome {
    let (bytes, kind) = inspect::component(bytes)?;
    let runtime = runtime(task)?;
    let component = compile_component(&runtime, &bytes, &task.output)?;
    check_resources(&component)?;
    if let Some(limits) = limits {
        limits.extend();
    }
    let linked = Linked::new(&runtime, kind, &component).map_err(|error| {
        UploadError::new(
            UploadCode::WrongType,
            shorten(format!(
                "the component does not fit the contract's {kind}: {error:#}"
            )),
        )
    })?;
    let said = describe(&runtime, &linked)?;
    let prepares = match &task.vocabulary {
        Some(path) => prepares(&runtime, &linked, path)?,
        None => Some(false),
    };
    let mut report = check_description(kind, said)?;
    report.prepares = prepares.unwrap_or(false);
    report.is_final = prepares.is_some();
    Ok(report)
}

/// A runtime that holds the instances of this process to the server's limits.
fn runtime(task: &CompileTask) -> Result<Arc<Runtime>, UploadError> {
    let limits = Limits {
        memory_bytes: usize::try_from(task.memory_bytes).unwrap_or(usize::MAX),
        open: Duration::from_millis(task.open_ms),
        ..Limits::default()
    };
    Runtime::on_demand(limits).map_err(|error| internal("compile", &error))
}

/// Refuses what the server's pool has no place for, as far as making an
/// instance here would fail less clearly.
fn check_resources(component: &Component) -> Result<(), UploadError> {
    let Some(needs) = component.resources_required() else {
        return Ok(());
    };
    for (what, n, limit) in [
        ("memories", needs.num_memories, MAX_MEMORIES),
        ("tables", needs.num_tables, MAX_TABLES),
    ] {
        if n > limit {
            let message = format!("the component has {n} {what}, the limit is {limit}");
            return Err(UploadError::new(UploadCode::TooComplex, message));
        }
    }
    Ok(())
}

/// Compiles a component and writes its code to a file.
fn compile_component(
    runtime: &Runtime,
    bytes: &[u8],
    output: &Path,
) -> Result<Component, UploadError> {
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
    Ok(component)
}

/// Writes the component's code with the memory that `prepare` leaves.
fn snapshot_of(bytes: &[u8], task: &CompileTask, limits: Option<ProcessLimits>) -> SnapshotOutcome {
    let (bytes, kind) = inspect::component(bytes)?;
    let path = task.vocabulary.as_deref().unwrap_or(Path::new(""));
    let (vocabulary, has_encoded) = read_vocabulary(path)?;
    let runtime = runtime(task)?;
    let limit = Duration::from_secs(PREPARE_SECONDS);
    let snapshot = snapshot::take(&runtime, kind, &bytes, &vocabulary, limit, || {
        if let Some(limits) = limits {
            limits.extend();
        }
    });
    match snapshot {
        Ok(snapshot) if !has_encoded.load(Ordering::Relaxed) => {
            if let Some(limits) = limits {
                limits.restrict();
            }
            compile_component(&runtime, &snapshot, &task.output)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// The vocabulary without its tokenizer, and whether that was missed.
fn read_vocabulary(path: &Path) -> Result<(Arc<Vocabulary>, Arc<AtomicBool>), UploadError> {
    let file = fs::read(path).map_err(|error| internal("read the vocabulary", &error))?;
    let has_encoded = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&has_encoded);
    let encode = Box::new(move |_: &str| {
        noted.store(true, Ordering::Relaxed);
        Vec::new()
    });
    let vocabulary = vocabulary_file::from_bytes(&file, encode)
        .map_err(|error| internal("read the vocabulary", &error))?;
    Ok((Arc::new(vocabulary), has_encoded))
}

/// Whether `prepare` reads the vocabulary, and nothing that is not known here;
/// nothing if it failed: the requests that use the plugin will hear of it.
fn prepares(
    runtime: &Arc<Runtime>,
    linked: &Linked,
    vocabulary: &Path,
) -> Result<Option<bool>, UploadError> {
    let (vocabulary, has_encoded) = read_vocabulary(vocabulary)?;
    let mut instance = instance(runtime, linked, "prepare", Some(vocabulary))?;
    let limit = Deadline::after(Duration::from_secs(PREPARE_SECONDS));
    Ok(match instance.prepare(limit) {
        Ok(()) => Some(instance.has_read_vocabulary() && !has_encoded.load(Ordering::Relaxed)),
        Err(_) => None,
    })
}

fn instance(
    runtime: &Arc<Runtime>,
    linked: &Linked,
    stage: &str,
    vocabulary: Option<Arc<Vocabulary>>,
) -> Result<Instance, UploadError> {
    Instance::new(
        runtime,
        linked,
        stage,
        vocabulary,
        Belonging::default(),
        Deadline::after(runtime.limits().open),
    )
    .map_err(|error| match error {
        InstanceError::Full(message) => UploadError::new(UploadCode::TooComplex, message),
        InstanceError::Fault(fault) => refuse(&fault),
    })
}

/// Makes one instance, which checks the types, and asks it for its description.
fn describe(runtime: &Arc<Runtime>, linked: &Linked) -> Result<Description, UploadError> {
    let mut instance = instance(runtime, linked, "describe", None)?;
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
        prepares: false,
        is_final: true,
    })
}

fn internal(what: &str, error: &dyn std::fmt::Display) -> UploadError {
    UploadError::new(UploadCode::Internal, format!("cannot {what}: {error}"))
}

/// What this process may take.
#[derive(Clone, Copy)]
struct ProcessLimits {
    compile_bytes: u64,
    run_bytes: u64,
    cpu_seconds: u64,
}

impl ProcessLimits {
    /// Lets the process reserve the memories that running needs, and run
    /// `prepare`.
    fn extend(self) {
        // Without it the instance cannot be made, and says so.
        let _ = set_limit(Resource::As, self.run_bytes, self.run_bytes);
        let cpu_seconds = self.cpu_seconds + PREPARE_SECONDS;
        let _ = set_limit(Resource::Cpu, cpu_seconds, cpu_seconds + 1);
    }

    /// Takes back what running needed.
    fn restrict(self) {
        let _ = set_limit(Resource::As, self.compile_bytes, self.run_bytes);
    }
}

fn set_limit(resource: Resource, current: u64, maximum: u64) -> rustix::io::Result<()> {
    let limit = Rlimit {
        current: Some(current),
        maximum: Some(maximum),
    };
    rustix::process::setrlimit(resource, limit)
}

/// Limits processor time for a number of compilations, and address space. What
/// a system does not have is left out: the parent's timeout
/// holds everywhere.
fn limit_process(task: &CompileTask) -> Option<ProcessLimits> {
    let n_compilations = if task.snapshot { 2 } else { 1 };
    let cpu_seconds = n_compilations * task.compile_seconds;
    let _ = set_limit(Resource::Core, 0, 0);
    let _ = set_limit(
        Resource::Cpu,
        cpu_seconds,
        cpu_seconds + PREPARE_SECONDS + 1,
    );
    let compile_bytes = address_space_bytes()? + task.compile_bytes;
    let run_bytes = compile_bytes + RUN_BYTES;
    set_limit(Resource::As, compile_bytes, run_bytes).ok()?;
    Some(ProcessLimits {
        compile_bytes,
        run_bytes,
        cpu_seconds,
    })
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
