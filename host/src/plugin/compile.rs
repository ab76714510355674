//! Uploads become plugins: child processes compile, describe and prepare them,
//! this side only loads what they made, or made once before.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;
use wasmtime::component::Component;

use super::cache::{Cache, Compiled, VOCABULARY};
use super::child::{CompileTask, Outcome, SnapshotOutcome};
use super::fault::shorten;
use super::inspect;
use super::instance::Linked;
use super::loaded::Plugin;
use super::record::Record;
use super::runtime::{Limits, Runtime};
use super::schema::ParamsSchema;
use super::upload::{UploadCode, UploadError};
use super::vocabulary::Vocabulary;

/// How long a child may take by the clock. Its processor time is what is limited
/// in earnest: a child gets little of a machine that is busy with its real work.
const TIMEOUT: Duration = Duration::from_mins(10);
/// How often a child is looked at.
const POLL: Duration = Duration::from_millis(5);
/// The most output that is read from a child: a description is far smaller.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// How the names of variables begin that concern the loader, memory, threads and
/// a panic's message. A child gets no other: what reads a stranger's bytes needs
/// no secrets, and none of the server's configuration.
const FOR_CHILDREN: [&str; 6] = ["LD_", "DYLD_", "GLIBC_", "MALLOC_", "RAYON_", "RUST_"];

fn is_for_children(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    FOR_CHILDREN.iter().any(|prefix| name.starts_with(prefix))
}

/// Runs the child processes that compile, one at a time, and keeps what they
/// made.
pub struct Compiler {
    executable: PathBuf,
    cache: Cache,
    vocabulary: Option<VocabularyFile>,
    /// Held while a child runs: a second one would only compete with it.
    running: Mutex<()>,
}

/// A vocabulary for the children to read.
struct VocabularyFile {
    digest: String,
    path: PathBuf,
}

impl Compiler {
    /// `executable` is a binary whose subcommand `plugin-compile` calls
    /// [`compile_child`](super::compile_child): the running one. Code is kept
    /// in a directory in `cache` that is made for this user alone.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(executable: PathBuf, cache: &Path) -> Result<Self, UploadError> {
        let directory = cache.join("plugins");
        let cache = Cache::new(directory.clone(), &executable).map_err(|error| {
            internal(format!(
                "the directory {} cannot be made: {error}",
                directory.display()
            ))
        })?;
        Ok(Self {
            executable,
            cache,
            vocabulary: None,
            running: Mutex::new(()),
        })
    }

    /// Has plugins prepared for this vocabulary once and for all: they open
    /// with no other from then on, if their `prepare` reads it.
    ///
    /// # Errors
    /// When the vocabulary cannot be written to the cache.
    pub fn with_vocabulary(mut self, vocabulary: &Vocabulary) -> Result<Self, UploadError> {
        let digest = vocabulary.digest().to_owned();
        let path = self
            .cache
            .write(&format!("{digest}.{VOCABULARY}"), &vocabulary.to_file())
            .map_err(|error| internal(format!("the vocabulary cannot be written: {error}")))?;
        self.vocabulary = Some(VocabularyFile { digest, path });
        Ok(self)
    }

    /// Compiles an upload of the given digest and loads it.
    pub(super) fn compile(
        &self,
        runtime: &Runtime,
        bytes: &[u8],
        digest: &str,
        builtin: bool,
    ) -> Result<Plugin, UploadError> {
        let limit = runtime.limits().upload_bytes;
        if bytes.len() > limit {
            return Err(UploadError::new(
                UploadCode::TooLarge,
                format!("the upload has {} bytes, the limit is {limit}", bytes.len()),
            ));
        }
        inspect::sniff(bytes)?;
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let vocabulary = self.vocabulary.as_ref().map(|file| file.digest.as_str());
        let key = self.cache.key(runtime.engine(), digest, vocabulary);
        let load = |compiled| load(runtime, compiled, bytes.len(), digest, builtin);
        // What cannot be loaded any more is made anew.
        if let Some(plugin) = self.cache.find(&key).and_then(|found| load(found).ok()) {
            return Ok(plugin);
        }
        let work = self.cache.work_file();
        let made = self.make(bytes, &work, runtime.limits(), builtin);
        let plugin = made.and_then(|mut compiled| {
            let kept = compiled
                .report
                .is_final
                .then(|| self.cache.keep(&key, &mut compiled));
            if let Some(Err(error)) = kept {
                tracing::warn!("compiled code is not kept: {error}");
            }
            load(compiled)
        });
        // Code that is loaded stays mapped.
        let _ = fs::remove_file(&work);
        plugin
    }

    /// Has an upload compiled into the file `work`, and again with what
    /// `prepare` leaves if that reads the vocabulary.
    fn make(
        &self,
        bytes: &[u8],
        work: &Path,
        limits: &Limits,
        shipped: bool,
    ) -> Result<Compiled, UploadError> {
        // The server's own are known to fit, and it cannot start without them.
        let defaults = Limits::default();
        let limits = if shipped { &defaults } else { limits };
        let mut task = CompileTask {
            output: work.to_owned(),
            vocabulary: self.vocabulary.as_ref().map(|file| file.path.clone()),
            snapshot: false,
            shipped,
            compile_seconds: limits.compile.as_secs(),
            compile_bytes: limits.compile_bytes,
            memory_bytes: limits.memory_bytes as u64,
            open_ms: limits.open.as_millis() as u64,
            parent: std::process::id(),
        };
        let mut report = self.run_child::<Outcome>(bytes, &task)??;
        let mut prepared_for = None;
        if let (true, Some(vocabulary)) = (report.prepares, &self.vocabulary) {
            task.output = self.cache.work_file();
            task.snapshot = true;
            let taken = self.run_child::<SnapshotOutcome>(bytes, &task);
            match taken.flatten() {
                Ok(true) => {
                    fs::rename(&task.output, work)
                        .map_err(|error| internal(format!("the code cannot be moved: {error}")))?;
                    prepared_for = Some(vocabulary.digest.clone());
                }
                Ok(false) => {}
                // Each instance prepares itself then.
                Err(error) => {
                    tracing::warn!("no snapshot of {}: {error}", report.name);
                    report.is_final = false;
                }
            }
            let _ = fs::remove_file(&task.output);
        }
        Ok(Compiled {
            report,
            prepared_for,
            code: work.to_owned(),
        })
    }

    /// Runs one child on an upload and reads its answer.
    fn run_child<T: DeserializeOwned>(
        &self,
        bytes: &[u8],
        task: &CompileTask,
    ) -> Result<T, UploadError> {
        let mut child = Command::new(&self.executable)
            .arg("plugin-compile")
            .args(task.arguments())
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| is_for_children(name)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                internal(format!(
                    "{} cannot be run: {error}",
                    self.executable.display()
                ))
            })?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (status, output, errors) = thread::scope(|scope| {
            // A child that ends before it has read everything is told apart by
            // its status.
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(bytes)));
            let output = scope.spawn(|| read_bounded(stdout));
            let errors = scope.spawn(|| read_bounded(stderr));
            let status = wait(&mut child);
            (status, output.join(), errors.join())
        });
        let (Ok(output), Ok(errors)) = (output, errors) else {
            return Err(internal("the compiler's output cannot be read".to_owned()));
        };
        match status {
            Ok(Some(status)) if status.success() => serde_json::from_slice(&output)
                .map_err(|error| internal(format!("the compiler's report is broken: {error}"))),
            Ok(Some(status)) => Err(read_failure(
                task,
                status,
                &String::from_utf8_lossy(&errors),
            )),
            Ok(None) => Err(UploadError::new(
                UploadCode::CompileTimeout,
                format!("the component took longer to compile than the limit of {TIMEOUT:?}"),
            )),
            Err(error) => Err(internal(format!("the compiler is lost: {error}"))),
        }
    }
}

/// Waits for a child to end; `None` if it had to be killed at the timeout.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

fn read_bounded(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // What could be read until an error is what there is.
        let _ = stream
            .by_ref()
            .take(MAX_OUTPUT_BYTES)
            .read_to_end(&mut bytes);
        let _ = io::copy(&mut stream, &mut io::sink());
    }
    bytes
}

/// Says why a child ended without a report.
fn read_failure(task: &CompileTask, status: ExitStatus, errors: &str) -> UploadError {
    let signal = |signal: rustix::process::Signal| status.signal() == Some(signal.as_raw());
    if signal(rustix::process::Signal::KILL) {
        // Its limits end it by other signals, where the system has them.
        let message = "the compiler was killed, by a system that is short of memory perhaps";
        return internal(message.to_owned());
    }
    if signal(rustix::process::Signal::XCPU) {
        return UploadError::new(
            UploadCode::TooComplex,
            format!(
                "the component took more than {} s of processor time to compile, which is the \
                 limit",
                task.compile_seconds
            ),
        );
    }
    if errors.contains("memory allocation of") || errors.contains("out of memory") {
        return UploadError::new(
            UploadCode::TooComplex,
            format!(
                "the component took more than {} MiB of memory to compile, which is the limit",
                task.compile_bytes >> 20
            ),
        );
    }
    let first_line = errors.lines().find(|line| !line.trim().is_empty());
    UploadError::new(
        UploadCode::CompileCrashed,
        shorten(format!(
            "the compiler failed on the component ({status}){}",
            first_line
                .map(|line| format!(": {line}"))
                .unwrap_or_default()
        )),
    )
}

/// Makes a plugin of what was compiled.
fn load(
    runtime: &Runtime,
    compiled: Compiled,
    size_bytes: usize,
    digest: &str,
    builtin: bool,
) -> Result<Plugin, UploadError> {
    let Compiled {
        report,
        prepared_for,
        code,
    } = compiled;
    // SAFETY: the file was written by a child that runs the same binary, in a
    // directory that only this user can enter, and was moved into its place
    // whole; an earlier one is believed only if its digest is still what was
    // recorded then. wasmtime checks that version and settings match.
    #[allow(unsafe_code)]
    let component = unsafe { Component::deserialize_file(runtime.engine(), &code) };
    let component = component.map_err(|error| unloadable(&error))?;
    let linked = Linked::new(runtime, report.kind, &component)
        .map_err(|error| UploadError::new(UploadCode::WrongType, shorten(format!("{error:#}"))))?;
    let validator = ParamsSchema::new(&report.params_schema)
        .map_err(|message| UploadError::new(UploadCode::InvalidDescription, message))?;
    let room = (!builtin).then(|| runtime.room(&report.name));
    let totals = runtime.totals(&report.name);
    Ok(Plugin {
        name: report.name,
        version: report.version,
        digest: digest.to_owned(),
        kind: report.kind,
        summary: report.summary,
        params_schema: report.params_schema,
        size_bytes,
        builtin,
        uploaded_at: SystemTime::now(),
        uploaded_by: None,
        linked,
        validator,
        prepared_for,
        record: Record::new(room, totals),
    })
}

/// Says why code cannot be loaded. The pool's limits are checked when it is: the
/// child has no pool.
fn unloadable(error: &wasmtime::Error) -> UploadError {
    if error.chain().any(<dyn std::error::Error>::is::<io::Error>) {
        return internal(format!("the compiled code cannot be read: {error:#}"));
    }
    UploadError::new(
        UploadCode::TooComplex,
        shorten(format!(
            "the component does not fit the plugin runtime: {error:#}"
        )),
    )
}

fn internal(message: String) -> UploadError {
    UploadError::new(UploadCode::Internal, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_has_no_variable_of_the_servers() {
        for (name, expected) in [
            ("LD_LIBRARY_PATH", true),
            ("DYLD_FALLBACK_LIBRARY_PATH", true),
            ("RUST_BACKTRACE", true),
            ("SLUICE_TOKENS", false),
            ("OTEL_EXPORTER_OTLP_HEADERS", false),
            ("HF_TOKEN", false),
            ("PATH", false),
        ] {
            assert_eq!(is_for_children(OsStr::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn what_is_no_fault_of_the_component_is_not_blamed_on_it() {
        let task = CompileTask {
            output: PathBuf::new(),
            vocabulary: None,
            snapshot: false,
            shipped: false,
            compile_seconds: 40,
            compile_bytes: 1 << 20,
            memory_bytes: 1 << 20,
            open_ms: 1,
            parent: 1,
        };
        // A wait status has the number of the signal: 9 is KILL, 24 is XCPU.
        for (status, code) in [(9, UploadCode::Internal), (24, UploadCode::TooComplex)] {
            let error = read_failure(&task, ExitStatus::from_raw(status), "");
            assert_eq!(error.code(), code.name(), "{status}");
        }
        // 24 is EMFILE.
        let error = wasmtime::Error::from(io::Error::from_raw_os_error(24)).context("opening");
        assert_eq!(unloadable(&error).code(), UploadCode::Internal.name());
        let error = wasmtime::Error::msg("31 tables");
        assert_eq!(unloadable(&error).code(), UploadCode::TooComplex.name());
    }
}
