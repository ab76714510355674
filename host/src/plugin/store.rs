//! What outlives the process: the uploaded components and who they are.
//!
//! Components lie in files named by their digest; a database says which of
//! them are plugins. A component's file is whole before the database names it,
//! and goes after the database has forgotten it, so that a crash at any moment
//! leaves at worst a file that nobody names, which the next start removes.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rusqlite::{Connection, OptionalExtension, params};

use super::cache::sha256;
use super::loaded::Plugin;

/// How components that are being written end.
const WORK: &str = "work";

/// How long the lock of a server that has ended may outlast it: a child that has
/// just been forked has it too, until it is the compiler.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The store failed. Nothing has changed, or the next start repairs it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the plugin store {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("the plugin store's database: {0}")]
    Database(#[from] rusqlite::Error),
    #[error(
        "another server uses the plugin store {}; give this one its own with --data",
        path.display()
    )]
    InUse { path: PathBuf },
    #[error("the component {digest} in the plugin store is damaged")]
    Damaged { digest: String },
}

/// A folder of this user's, used by one server at a time.
pub struct Store {
    components: PathBuf,
    connection: Mutex<Connection>,
    /// Locked as long as the store is open.
    _lock: File,
}

/// A plugin as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) digest: String,
    pub(super) uploaded_at: SystemTime,
    pub(super) uploaded_by: Option<String>,
}

impl Store {
    /// Opens the store in `folder`, made if need be, and removes what a crash
    /// left behind.
    ///
    /// # Errors
    /// When another server uses it, or files or database cannot be used.
    pub fn open(folder: &Path) -> Result<Self, StoreError> {
        let components = folder.join("components");
        let file = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::File { path, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&components)
            .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o700)))
            .map_err(file(folder))?;
        let lock_path = folder.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(file(&lock_path))?;
        let start = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_PATIENCE => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(TryLockError::WouldBlock) => {
                    let path = folder.to_owned();
                    return Err(StoreError::InUse { path });
                }
                Err(TryLockError::Error(source)) => return Err(file(&lock_path)(source)),
            }
        }
        let connection = Connection::open(folder.join("plugins.sqlite"))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(SCHEMA)?;
        let store = Self {
            components,
            connection: Mutex::new(connection),
            _lock: lock,
        };
        store.sweep()?;
        Ok(store)
    }

    /// All plugins that can be used, in the order of their uploads.
    pub(super) fn list(&self) -> Result<Vec<Stored>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare(
            "SELECT digest, uploaded_at, uploaded_by FROM plugins
             WHERE removed_at IS NULL ORDER BY rowid",
        )?;
        let rows = statement.query_map([], |row| {
            Ok(Stored {
                digest: row.get(0)?,
                uploaded_at: time(row.get(1)?),
                uploaded_by: row.get(2)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The component with this digest, whole.
    pub(super) fn read(&self, digest: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.file(digest);
        let bytes = fs::read(&path).map_err(|source| StoreError::File { path, source })?;
        if format!("sha256:{}", sha256(&bytes)) == digest {
            Ok(bytes)
        } else {
            let digest = digest.to_owned();
            Err(StoreError::Damaged { digest })
        }
    }

    /// The digest under which a version was ever uploaded.
    pub(super) fn digest_of(
        &self,
        name: &str,
        version: &semver::Version,
    ) -> Result<Option<String>, StoreError> {
        let query = "SELECT digest FROM plugins WHERE name = ? AND version = ?";
        let found = self
            .connection()
            .query_row(query, params![name, version.to_string()], |row| row.get(0));
        Ok(found.optional()?)
    }

    /// Keeps a plugin. When this returns it outlives a crash.
    pub(super) fn keep(&self, plugin: &Plugin, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.file(&plugin.digest);
        self.write(&path, bytes)
            .map_err(|source| StoreError::File { path, source })?;
        self.connection().execute(
            "INSERT INTO plugins (digest, name, version, kind, size_bytes, uploaded_at, uploaded_by)
             VALUES (?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT (digest) DO UPDATE SET removed_at = NULL,
                 uploaded_at = excluded.uploaded_at, uploaded_by = excluded.uploaded_by",
            params![
                plugin.digest,
                plugin.name,
                plugin.version.to_string(),
                plugin.kind.name(),
                plugin.size_bytes as i64,
                millis(plugin.uploaded_at),
                plugin.uploaded_by,
            ],
        )?;
        Ok(())
    }

    /// Forgets plugins, all or none. Their versions stay taken.
    pub(super) fn remove(&self, digests: &[&str]) -> Result<(), StoreError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        for digest in digests {
            transaction.execute(
                "UPDATE plugins SET removed_at = ? WHERE digest = ?",
                params![millis(SystemTime::now()), digest],
            )?;
        }
        transaction.commit()?;
        for digest in digests {
            // One that stays is removed at the next start.
            let _ = fs::remove_file(self.file(digest));
        }
        Ok(())
    }

    /// Writes a file whole or not at all, and so that it outlives a crash.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let work = path.with_extension(WORK);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&work)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&work, path)?;
        File::open(&self.components)?.sync_all()
    }

    /// Removes files that the database does not name.
    fn sweep(&self) -> Result<(), StoreError> {
        let folder = &self.components;
        let file = |source| StoreError::File {
            path: folder.clone(),
            source,
        };
        let named: Vec<_> = self
            .list()?
            .iter()
            .map(|stored| self.file(&stored.digest))
            .collect();
        for entry in fs::read_dir(folder).map_err(file)? {
            let path = entry.map_err(file)?.path();
            if !named.contains(&path) {
                fs::remove_file(&path).map_err(file)?;
            }
        }
        Ok(())
    }

    fn file(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
        self.components.join(format!("{hex}.wasm"))
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A removed plugin's row stays, so that its version never means other bytes.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS plugins (
        digest TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        version TEXT NOT NULL,
        kind TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        uploaded_at INTEGER NOT NULL, -- milliseconds since 1970
        uploaded_by TEXT,             -- the name of a token
        removed_at INTEGER,
        UNIQUE (name, version)
    ) STRICT;
";

fn millis(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}

fn time(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.max(0) as u64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_used_by_one_server_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let second = Store::open(folder.path()).err().unwrap();
        assert!(matches!(second, StoreError::InUse { .. }), "{second}");
        drop(store);
        assert_eq!(Store::open(folder.path()).unwrap().list().unwrap(), []);
    }

    #[test]
    fn what_a_crash_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        drop(Store::open(folder.path()).unwrap());
        let components = folder.path().join("components");
        for name in ["00.work", "11.wasm"] {
            fs::write(components.join(name), b"half").unwrap();
        }
        drop(Store::open(folder.path()).unwrap());
        assert_eq!(fs::read_dir(components).unwrap().count(), 0);
    }
}
