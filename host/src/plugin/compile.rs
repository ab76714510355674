//! Uploads become plugins: a child process compiles and describes them, this
//! side only loads what it made.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use wasmtime::component::Component;

use super::child::{COMPILE_BYTES, CPU_SECONDS, Outcome, Report};
use super::inspect;
use super::instance::{Linked, shorten};
use super::loaded::Plugin;
use super::runtime::Runtime;
use super::schema::ParamsSchema;
use super::upload::{UploadCode, UploadError};

/// How long a child may take, processor time or not.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How often a child is looked at.
const POLL: Duration = Duration::from_millis(5);
/// The most output that is read from a child: a description is far smaller.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// Runs the child processes that compile, one at a time.
pub struct Compiler {
    executable: PathBuf,
    directory: PathBuf,
    /// Held while a child runs: a second one would only compete with it.
    running: Mutex<()>,
}

impl Compiler {
    /// `executable` is a binary whose subcommand `plugin-compile` calls
    /// [`compile_child`](super::compile_child): the running one. Code passes
    /// through a directory in `cache` that is made for this user alone.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(executable: PathBuf, cache: &Path) -> Result<Self, UploadError> {
        let directory = cache.join("plugins");
        let make = || {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&directory)?;
            fs::set_permissions(&directory, Permissions::from_mode(0o700))
        };
        make().map_err(|error| {
            internal(format!(
                "the directory {} cannot be made: {error}",
                directory.display()
            ))
        })?;
        Ok(Self {
            executable,
            directory,
            running: Mutex::new(()),
        })
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
        // Other servers may share the directory.
        let name = uuid::Uuid::new_v4().simple();
        let code = self.directory.join(format!("{name}.cwasm"));
        let plugin = self
            .run_child(bytes, &code)
            .and_then(|report| load(runtime, report, &code, bytes, digest, builtin));
        // The code stays mapped; the file has served its purpose.
        let _ = fs::remove_file(&code);
        plugin
    }

    fn run_child(&self, bytes: &[u8], code: &Path) -> Outcome {
        let mut child = Command::new(&self.executable)
            .arg("plugin-compile")
            .arg(code)
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
                .map_err(|error| internal(format!("the compiler's report is broken: {error}")))?,
            Ok(Some(status)) => Err(read_failure(status, &String::from_utf8_lossy(&errors))),
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
fn read_failure(status: ExitStatus, errors: &str) -> UploadError {
    let signal = |signal: rustix::process::Signal| status.signal() == Some(signal.as_raw());
    if signal(rustix::process::Signal::XCPU) || signal(rustix::process::Signal::KILL) {
        return UploadError::new(
            UploadCode::TooComplex,
            format!(
                "the component took more than {CPU_SECONDS} s of processor time to compile, \
                 which is the limit"
            ),
        );
    }
    if errors.contains("memory allocation of") || errors.contains("out of memory") {
        return UploadError::new(
            UploadCode::TooComplex,
            format!(
                "the component took more than {} MiB of memory to compile, which is the limit",
                COMPILE_BYTES >> 20
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

/// Makes a plugin of what a child reported and wrote to `code`.
fn load(
    runtime: &Runtime,
    report: Report,
    code: &Path,
    bytes: &[u8],
    digest: &str,
    builtin: bool,
) -> Result<Plugin, UploadError> {
    // SAFETY: the file was written just now by a child of this process that
    // runs the same binary, in a directory that only this user can enter, and
    // is removed after this. wasmtime checks that version and settings match.
    #[allow(unsafe_code)]
    let component = unsafe { Component::deserialize_file(runtime.engine(), code) };
    // The pool's limits are checked here: the child has no pool.
    let component = component.map_err(|error| {
        UploadError::new(
            UploadCode::TooComplex,
            shorten(format!(
                "the component does not fit the plugin runtime: {error:#}"
            )),
        )
    })?;
    let linked = Linked::new(runtime, report.kind, &component)
        .map_err(|error| UploadError::new(UploadCode::WrongType, shorten(format!("{error:#}"))))?;
    let validator = ParamsSchema::new(&report.params_schema)
        .map_err(|message| UploadError::new(UploadCode::InvalidDescription, message))?;
    Ok(Plugin {
        name: report.name,
        version: report.version,
        digest: digest.to_owned(),
        kind: report.kind,
        summary: report.summary,
        params_schema: report.params_schema,
        size_bytes: bytes.len(),
        builtin,
        uploaded_at: SystemTime::now(),
        linked,
        validator,
    })
}

fn internal(message: String) -> UploadError {
    UploadError::new(UploadCode::Internal, message)
}
