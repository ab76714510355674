//! Plugins from a folder: what lies in it is registered, and so is what
//! changes, while the server runs.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::registry::Registry;

/// A folder whose `.wasm` files are plugins. They are not kept in the store:
/// the folder is where they are kept.
pub struct Folder {
    path: PathBuf,
    /// What each file looked like when it was last read, and just now.
    known: HashMap<PathBuf, Known>,
}

/// A file by what changes when it is written.
type Look = (SystemTime, u64);

struct Known {
    read: Option<Look>,
    seen: Look,
}

impl Folder {
    /// # Errors
    /// When the folder cannot be read.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        fs::read_dir(&path)?;
        Ok(Self {
            path,
            known: HashMap::new(),
        })
    }

    /// Registers the files that are new or changed, once they have looked the
    /// same twice: a file may be half written. `at_once` reads them all now.
    /// What is wrong with a file is logged, once for each change.
    pub fn load(&mut self, registry: &Registry, at_once: bool) {
        let files = match self.files() {
            Ok(files) => files,
            Err(error) => {
                tracing::warn!("the plugin folder {}: {error}", self.path.display());
                return;
            }
        };
        self.known.retain(|path, _| files.contains_key(path));
        for (path, look) in files {
            let known = self.known.entry(path.clone()).or_insert(Known {
                read: None,
                seen: (SystemTime::UNIX_EPOCH, 0),
            });
            let is_settled = at_once || known.seen == look;
            known.seen = look;
            if is_settled && known.read != Some(look) {
                known.read = Some(look);
                register(registry, &path);
            }
        }
    }

    fn files(&self) -> io::Result<HashMap<PathBuf, Look>> {
        let mut files = HashMap::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "wasm") {
                continue;
            }
            // One that has just gone is no file of the folder any more.
            if let Ok(file) = fs::metadata(&path)
                && file.is_file()
            {
                let changed = file.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.insert(path, (changed, file.len()));
            }
        }
        Ok(files)
    }
}

fn register(registry: &Registry, path: &Path) {
    let shown = path.display();
    let registered = fs::read(path)
        .map_err(|error| error.to_string())
        .and_then(|bytes| {
            registry
                .upload_from_folder(&bytes)
                .map_err(|error| error.to_string())
        });
    match registered {
        Ok(uploaded) if uploaded.created => {
            tracing::info!("{:?} from {shown}", uploaded.plugin);
        }
        Ok(_) => {}
        Err(error) => tracing::error!("{shown} is no plugin: {error}"),
    }
}
