//! Where a model comes from.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{
    LoadError, Progress, default_model,
    hub::{Hub, HubModel},
};

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// The one that is served when none is named.
    Default,
    /// A file or folder of this machine.
    Path(PathBuf),
    /// A repository of the hub.
    Hub(HubModel),
}

/// Where fetched models are kept, and whether they may be fetched.
#[derive(Debug, Clone)]
pub struct Shelf {
    /// The user's cache directory for this program.
    pub cache: PathBuf,
    /// The hub, and where its models are kept.
    pub hub: Hub,
    /// Nothing is asked over the network.
    pub offline: bool,
}

impl FromStr for ModelSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("hf:") {
            name.parse().map(Self::Hub)
        } else {
            Ok(Self::Path(PathBuf::from(text)))
        }
    }
}

impl ModelSource {
    /// What the model is called, if its source says.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Default | Self::Path(_) => None,
            Self::Hub(model) => Some(model.repository()),
        }
    }

    /// The file or folder, fetched if it has to be.
    ///
    /// # Errors
    /// When it is not there and cannot be fetched, or is not what it should be.
    pub fn fetch(
        &self,
        shelf: &Shelf,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<PathBuf, LoadError> {
        match self {
            Self::Default if shelf.offline && !default_model::path(&shelf.cache).is_file() => {
                let cache = shelf.cache.display();
                Err(default_model::failed(format!(
                    "it is not in {cache}, and this is offline"
                )))
            }
            Self::Default => default_model::fetch(&shelf.cache, progress),
            Self::Path(path) => Ok(path.clone()),
            Self::Hub(model) => shelf.hub.fetch(model, shelf.offline, progress),
        }
    }
}

/// Holds a lock file until the result is dropped or the process ends, however
/// it ends. Waits for another process that holds it.
pub(super) fn lock(path: &Path) -> Result<File, String> {
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| File::create(path))
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| format!("could not lock {}: {error}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tempfile::tempdir;

    use super::*;

    #[test]
    fn a_model_is_a_path_unless_it_is_one_of_the_hub() {
        let parsed = |text: &str| text.parse::<ModelSource>();
        let path = parsed("models/hf/a.gguf").unwrap();
        assert_eq!(path, ModelSource::Path("models/hf/a.gguf".into()));
        assert_eq!(path.name(), None);
        let hub = parsed("hf:Qwen/Qwen3-0.6B@main").unwrap();
        assert_eq!(hub.name(), Some("Qwen/Qwen3-0.6B"));
        assert!(parsed("hf:Qwen3").unwrap_err().contains("hf:OWNER/NAME"));
    }

    #[test]
    fn offline_nothing_is_fetched() {
        let folder = tempdir().unwrap();
        let shelf = Shelf {
            cache: folder.path().to_owned(),
            hub: Hub::from_env(Some(folder.path())),
            offline: true,
        };
        for (source, name) in [
            (ModelSource::Default, "the default model"),
            ("hf:a/b".parse().unwrap(), "`hf:a/b@main`"),
        ] {
            let error = source.fetch(&shelf, &mut |_| ()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("offline"), "{error}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
