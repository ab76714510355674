//! Compiled code that outlives the process: found again by what it was
//! compiled from and with, believed only if it is whole and this user's own.
//!
//! Processes share the directory. What one of them was making when it was
//! killed is removed by the next that finds itself alone with it.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wasmtime::Engine;

use super::child::Report;

/// Most files that are kept: two for each component. More would make a search
/// for the oldest slow; fewer would have a server that holds a thousand plugins
/// compile them again at every start.
const MAX_FILES: usize = 4096;
/// Most that they may take together.
const MAX_BYTES: u64 = 1 << 30;
/// What a process that died left half written is removed at this age.
const MAX_WORK_AGE: Duration = Duration::from_hours(1);
/// How files that are being written end.
const WORK: &str = "work";
/// How files of compiled code end, and the records that name them.
const CODE: &str = "cwasm";
const RECORD: &str = "json";
/// How files of a model's vocabulary end.
pub(super) const VOCABULARY: &str = "vocabulary";

/// A directory that only this user can enter.
pub(super) struct Cache {
    directory: PathBuf,
    /// Of the executable: another build may compile, describe or snapshot
    /// differently.
    build: (u64, i64, i64),
    /// Locked by all that use the directory, as long as they do.
    lock: File,
}

/// What is kept of one compilation, beside its code.
#[derive(Serialize, Deserialize)]
struct Record {
    report: Report,
    /// Digest of the vocabulary that the code's memory was prepared with.
    prepared_for: Option<String>,
    /// The code's digest, which names its file.
    code: String,
}

/// Code that can be loaded.
pub(super) struct Compiled {
    pub(super) report: Report,
    pub(super) prepared_for: Option<String>,
    pub(super) code: PathBuf,
}

impl Cache {
    pub(super) fn new(directory: PathBuf, executable: &Path) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
        let build = fs::metadata(executable).map_or((0, 0, 0), |file| {
            (file.size(), file.mtime(), file.mtime_nsec())
        });
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(directory.join("lock"))?;
        let is_alone = lock.try_lock().is_ok();
        let cache = Self {
            directory,
            build,
            lock,
        };
        if is_alone {
            cache.sweep();
        }
        // A file system without locks costs no more than the sweep.
        let _ = cache.lock.lock_shared();
        cache.prune();
        Ok(cache)
    }

    /// Removes what nobody is making any more: files half written, code that no
    /// record names, and records without code.
    fn sweep(&self) {
        let mut named = HashSet::new();
        for path in self.files(RECORD) {
            let code = fs::read(&path)
                .ok()
                .and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok())
                .and_then(|record| self.code_file(&record.code))
                .filter(|code| code.exists());
            match code {
                Some(code) => drop(named.insert(code)),
                None => drop(fs::remove_file(path)),
            }
        }
        let orphans = self.files(CODE).filter(|path| !named.contains(path));
        for path in orphans.chain(self.files(WORK)) {
            // One that stays is pruned some day.
            let _ = fs::remove_file(path);
        }
    }

    /// The files whose names end so.
    fn files(&self, extension: &str) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        let paths = entries.flatten().map(|entry| entry.path());
        paths.filter(move |path| path.extension().is_some_and(|end| end == extension))
    }

    /// A new path for a file that is about to be written.
    pub(super) fn work_file(&self) -> PathBuf {
        let name = uuid::Uuid::new_v4().simple();
        self.directory.join(format!("{name}.{WORK}"))
    }

    /// The name of what a component compiles to here, with this vocabulary.
    pub(super) fn key(&self, engine: &Engine, component: &str, vocabulary: Option<&str>) -> String {
        // The engine knows what it hashes into this: version, target, settings.
        let mut settings = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut settings);
        sha256(
            format!(
                "{component}\n{vocabulary:?}\n{:x}\n{:?}\n{}",
                settings.finish(),
                self.build,
                env!("CARGO_PKG_VERSION"),
            )
            .as_bytes(),
        )
    }

    /// What was kept under a key, if it is whole.
    pub(super) fn find(&self, key: &str) -> Option<Compiled> {
        let record = self.directory.join(format!("{key}.{RECORD}"));
        let Record {
            report,
            prepared_for,
            code: digest,
        } = serde_json::from_slice(&read_own(&record)?).ok()?;
        let code = self.code_file(&digest)?;
        if sha256(&read_own(&code)?) != digest {
            return None;
        }
        for path in [&record, &code] {
            // The ones that were used longest ago go first.
            let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
        }
        Some(Compiled {
            report,
            prepared_for,
            code,
        })
    }

    /// Keeps what was compiled: moves its code from where it was written.
    pub(super) fn keep(&self, key: &str, compiled: &mut Compiled) -> io::Result<()> {
        let digest = sha256(&fs::read(&compiled.code)?);
        let record = Record {
            report: compiled.report.clone(),
            prepared_for: compiled.prepared_for.clone(),
            code: digest.clone(),
        };
        let code = self.directory.join(format!("{digest}.{CODE}"));
        File::open(&compiled.code)?.sync_all()?;
        fs::set_permissions(&compiled.code, Permissions::from_mode(0o600))?;
        fs::rename(&compiled.code, &code)?;
        compiled.code = code;
        self.write(&format!("{key}.{RECORD}"), &serde_json::to_vec(&record)?)?;
        self.prune();
        Ok(())
    }

    /// Writes a file whole or not at all.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
        let work = self.work_file();
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&work)?;
        let path = self.directory.join(name);
        let written = file
            .write_all(bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&work, &path));
        if written.is_err() {
            let _ = fs::remove_file(&work);
        }
        written.map(|()| path)
    }

    /// The file of a digest, which must be one: it comes from a file.
    fn code_file(&self, digest: &str) -> Option<PathBuf> {
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| self.directory.join(format!("{digest}.{CODE}")))
    }

    /// Removes what was used longest ago until the rest is within the bounds.
    fn prune(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        let now = SystemTime::now();
        let mut files = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(file) = entry.metadata() else { continue };
            let used = file.modified().unwrap_or(now);
            // A vocabulary is small, and read again for each upload.
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(WORK) if now.duration_since(used).is_ok_and(|age| age > MAX_WORK_AGE) => {
                    let _ = fs::remove_file(path);
                }
                Some(CODE | RECORD) if file.is_file() => {
                    files.push((used, file.len(), path));
                }
                _ => {}
            }
        }
        files.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum_bytes = 0;
        for (i, (_, bytes, path)) in files.into_iter().enumerate() {
            sum_bytes += bytes;
            if i >= MAX_FILES || sum_bytes > MAX_BYTES {
                // Code that is in use stays mapped.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// The bytes of a regular file that no other user can have written.
fn read_own(path: &Path) -> Option<Vec<u8>> {
    let file = fs::symlink_metadata(path).ok()?;
    let own = file.uid() == rustix::process::geteuid().as_raw();
    if !file.is_file() || !own || file.mode() & 0o022 != 0 {
        return None;
    }
    fs::read(path).ok()
}

/// The digest of bytes, in lower-case hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::plugin::Kind;

    fn cache(directory: &Path) -> Cache {
        Cache::new(directory.join("plugins"), Path::new("/nonexistent")).unwrap()
    }

    fn compiled(cache: &Cache, code: &[u8]) -> Compiled {
        let path = cache.work_file();
        fs::write(&path, code).unwrap();
        let report = Report {
            kind: Kind::Sampler,
            name: "a".to_owned(),
            version: semver::Version::new(1, 2, 3),
            summary: "b".to_owned(),
            params_schema: serde_json::json!({}),
            prepares: true,
            is_final: true,
        };
        Compiled {
            report,
            prepared_for: Some("v".to_owned()),
            code: path,
        }
    }

    /// A kept compilation, and where its record and its code are.
    fn kept(cache: &Cache) -> [PathBuf; 2] {
        let mut compiled = compiled(cache, b"code");
        cache.keep("k", &mut compiled).unwrap();
        [cache.directory.join("k.json"), compiled.code]
    }

    #[test]
    fn what_is_kept_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(directory.path());
        assert!(cache.find("k").is_none());
        let [_, code] = kept(&cache);
        let found = cache.find("k").unwrap();
        assert_eq!((found.report.name.as_str(), found.code), ("a", code));
        assert_eq!(found.prepared_for.as_deref(), Some("v"));
        assert!(cache.find("other").is_none());
        let mode = fs::metadata(&cache.directory).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn what_a_killed_process_was_making_is_removed_by_the_next_that_is_alone() {
        let directory = tempfile::tempdir().unwrap();
        let first = cache(directory.path());
        let kept = kept(&first);
        let path = |name: &str| first.directory.join(name);
        let code = format!("{}.{CODE}", sha256(b"unnamed"));
        let record = fs::read_to_string(&kept[0]).unwrap();
        let lost = record.replace(&sha256(b"code"), &sha256(b"lost"));
        let left = [
            ("half.work", b"half".to_vec()),
            (&code, b"unnamed".to_vec()),
            ("lost.json", lost.into_bytes()),
            ("torn.json", b"{".to_vec()),
        ]
        .map(|(name, bytes)| {
            fs::write(path(name), bytes).unwrap();
            path(name)
        });
        let second = cache(directory.path());
        assert!(left.iter().all(|path| path.exists()), "another uses it");
        drop((first, second));
        let third = cache(directory.path());
        assert!(!left.iter().any(|path| path.exists()));
        assert!(kept.iter().all(|path| path.exists()) && third.find("k").is_some());
    }

    #[test]
    fn what_is_torn_or_changed_is_not_found() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(directory.path());
        for i in 0..2 {
            let whole = fs::read(&kept(&cache)[i]).unwrap();
            let changes = [
                Vec::new(),
                whole[..whole.len() - 1].to_vec(),
                [&whole[..], b"}"].concat(),
                b"{}".to_vec(),
            ];
            for change in changes {
                fs::write(&kept(&cache)[i], change).unwrap();
                assert!(cache.find("k").is_none());
            }
            fs::remove_file(&kept(&cache)[i]).unwrap();
            assert!(cache.find("k").is_none());
        }
        let [record, _] = kept(&cache);
        let text = fs::read_to_string(&record).unwrap();
        let elsewhere = text.replace(&sha256(b"code"), "../../etc/passwd");
        assert_ne!(text, elsewhere);
        fs::write(&record, elsewhere).unwrap();
        assert!(cache.find("k").is_none());
    }

    #[test]
    fn what_others_could_have_written_is_not_found() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(directory.path());
        for i in 0..2 {
            let path = &kept(&cache)[i];
            fs::set_permissions(path, Permissions::from_mode(0o620)).unwrap();
            assert!(cache.find("k").is_none());
            let moved = directory.path().join("moved");
            let path = &kept(&cache)[i];
            fs::rename(path, &moved).unwrap();
            std::os::unix::fs::symlink(&moved, path).unwrap();
            assert!(cache.find("k").is_none());
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn the_oldest_files_go_first() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(directory.path());
        let path = |i: usize| cache.directory.join(format!("{i}.json"));
        let start = SystemTime::now() - Duration::from_secs(10_000);
        for i in 0..MAX_FILES + 2 {
            fs::write(path(i), "").unwrap();
            let used = start + Duration::from_secs(i as u64);
            File::open(path(i)).unwrap().set_modified(used).unwrap();
        }
        let large = File::create(path(2)).unwrap();
        large.set_len(MAX_BYTES).unwrap();
        large.set_modified(start + Duration::from_secs(2)).unwrap();
        let work = cache.work_file();
        File::create(&work).unwrap().set_modified(start).unwrap();
        File::create(cache.work_file()).unwrap();
        cache.prune();
        let kept: Vec<_> = (0..MAX_FILES + 2).filter(|&i| path(i).exists()).collect();
        assert_eq!(kept, (2..MAX_FILES + 2).collect::<Vec<_>>());
        assert!(!work.exists());
        // As many files, but one byte too much.
        fs::remove_file(path(5)).unwrap();
        fs::write(path(5), "x").unwrap();
        cache.prune();
        assert!(!path(2).exists() && path(3).exists() && path(5).exists());
    }

    #[test]
    fn a_key_names_all_that_code_depends_on() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(directory.path());
        let engine = Engine::default();
        let mut settings = wasmtime::Config::new();
        settings.epoch_interruption(true);
        let other = Engine::new(&settings).unwrap();
        let mut keys = vec![
            cache.key(&engine, "a", None),
            cache.key(&engine, "b", None),
            cache.key(&engine, "a", Some("v")),
            cache.key(&other, "a", None),
        ];
        assert_eq!(keys[0], cache.key(&engine, "a", None));
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 4);
    }
}
