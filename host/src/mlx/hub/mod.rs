//! Models of the Hugging Face hub, or of a server that speaks like it.
//!
//! Files lie as all programs of the hub keep them, in a folder for each
//! commit. A revision that is a branch or tag is resolved to its commit once,
//! and all files are fetched of that commit. An interrupted file is resumed.

mod choose;
mod name;

use std::{
    collections::BTreeSet,
    fmt, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use hf_hub::{
    Cache, Repo, RepoType,
    api::sync::{Api, ApiBuilder, ApiError},
};
use serde::Deserialize;

pub use self::name::HubModel;
use self::{
    choose::{INDEX, SMALL_FILES, Wanted, wanted, weights},
    name::{is_commit, is_plain},
};
use super::{LoadError, Progress, digest, source};

const ENDPOINT: &str = "https://huggingface.co";
const RETRIES: usize = 4;

/// A hub, and where its models are kept.
#[derive(Clone)]
pub struct Hub {
    /// Without a slash at the end.
    pub endpoint: String,
    /// The folder in which all programs of the hub keep its models.
    pub folder: PathBuf,
    /// For repositories that are not public.
    pub token: Option<String>,
}

/// Without the token.
impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("endpoint", &self.endpoint)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// What the hub says of a repository at a revision.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    rfilename: String,
    #[serde(default)]
    size: u64,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: String,
}

impl Hub {
    /// The hub that the variables of its own programs name: `HF_ENDPOINT`,
    /// `HF_HOME`, `HF_TOKEN`. With `cache` its models are kept there.
    pub fn from_env(cache: Option<&Path>) -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = variable("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(std::env::home_dir()?.join(".cache/huggingface")));
        let usual = home.unwrap_or_default().join("hub");
        Self {
            endpoint: variable("HF_ENDPOINT")
                .unwrap_or_else(|| ENDPOINT.to_owned())
                .trim_end_matches('/')
                .to_owned(),
            token: variable("HF_TOKEN").or_else(|| Cache::new(usual.clone()).token()),
            folder: cache.map_or(usual, |cache| cache.join("hub")),
        }
    }

    /// The file or folder of a model. Asks the hub unless the revision is a
    /// commit that was fetched before.
    pub(super) fn fetch(
        &self,
        model: &HubModel,
        offline: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<PathBuf, LoadError> {
        let failed = |reason: String| LoadError::Fetch {
            model: format!("`{model}`"),
            reason,
        };
        let kept = self.kept(model);
        match kept {
            Some(path) if offline || is_commit(&model.revision) => return Ok(path),
            None if offline => {
                let folder = self.folder.display();
                return Err(failed(format!(
                    "it is not in {folder}, and this is offline"
                )));
            }
            _ => {}
        }
        // hf-hub asserts what a server should say.
        catch_unwind(AssertUnwindSafe(|| self.fetch_online(model, progress)))
            .unwrap_or_else(|_| Err(format!("{} did not answer as a hub", self.endpoint)))
            .map_err(failed)
    }

    fn repo(model: &HubModel, revision: &str) -> Repo {
        let revision = revision.to_owned();
        Repo::with_revision(model.repository.clone(), RepoType::Model, revision)
    }

    fn snapshot(&self, model: &HubModel, commit: &str) -> PathBuf {
        let cache = Cache::new(self.folder.clone());
        cache.repo(Self::repo(model, commit)).pointer_path(commit)
    }

    /// Where the model lies, if all of it was fetched before.
    fn kept(&self, model: &HubModel) -> Option<PathBuf> {
        let repository = Self::repo(model, &model.revision).folder_name();
        let commit = if is_commit(&model.revision) {
            model.revision.clone()
        } else {
            let refs = self.folder.join(repository).join("refs");
            fs::read_to_string(refs.join(&model.revision)).ok()?
        };
        let commit = commit.trim();
        if !is_commit(commit) {
            return None;
        }
        let snapshot = self.snapshot(model, commit);
        if let Some(file) = &model.file {
            let path = snapshot.join(file);
            return path.is_file().then_some(path);
        }
        let names: BTreeSet<String> = fs::read_dir(&snapshot)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        match wanted(&names, None).ok()? {
            Wanted::File(file) => Some(snapshot.join(file)),
            Wanted::Folder => {
                let weights = weights(&names, &snapshot).ok()?;
                let all = weights.iter().all(|name| snapshot.join(name).is_file());
                (all && names.contains("config.json")).then_some(snapshot)
            }
        }
    }

    fn fetch_online(
        &self,
        model: &HubModel,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<PathBuf, String> {
        let api = self.api()?;
        let listing = self.list(&api, model)?;
        let repository = Self::repo(model, &listing.sha).folder_name();
        let lock = source::lock(&self.folder.join(repository).join("sluice.lock"))?;
        let names = listing.names();
        let snapshot = self.snapshot(model, &listing.sha);
        let mut fetch = Fetch {
            hub: self,
            api: &api,
            model,
            listing: &listing,
            progress,
            done_bytes: 0,
            total_bytes: 0,
        };
        let path = match wanted(&names, model.file.as_deref())? {
            Wanted::File(file) => {
                fetch.all([file.as_str()])?;
                snapshot.join(file)
            }
            Wanted::Folder => {
                let small = SMALL_FILES.into_iter();
                fetch.all(small.filter(|name| names.contains(*name)))?;
                let weights = weights(&names, &snapshot)?;
                fetch.all(weights.iter().map(String::as_str))?;
                snapshot
            }
        };
        // So that the revision can be found offline.
        Cache::new(self.folder.clone())
            .repo(Self::repo(model, &model.revision))
            .create_ref(&listing.sha)
            .map_err(|error| error.to_string())?;
        drop(lock);
        Ok(path)
    }

    fn api(&self) -> Result<Api, String> {
        if !["http://", "https://"]
            .iter()
            .any(|scheme| self.endpoint.starts_with(scheme))
        {
            let endpoint = &self.endpoint;
            return Err(format!("the hub's address `{endpoint}` is no URL"));
        }
        ApiBuilder::from_cache(Cache::new(self.folder.clone()))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_retries(RETRIES)
            .with_progress(false)
            .with_user_agent("sluice", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| self.explain(&error))
    }

    fn list(&self, api: &Api, model: &HubModel) -> Result<Listing, String> {
        let mut answer = api
            .repo(Self::repo(model, &model.revision))
            .info_request()
            .query("blobs", "true")
            .call()
            .map_err(|error| self.explain(&ApiError::from(Box::new(error))))?;
        let listing: Listing = answer
            .body_mut()
            .read_json()
            .map_err(|error| format!("{} lists no files: {error}", self.endpoint))?;
        if !is_commit(&listing.sha) {
            let sha = &listing.sha;
            return Err(format!("{} names no commit: {sha:?}", self.endpoint));
        }
        Ok(listing)
    }

    fn explain(&self, error: &ApiError) -> String {
        let error = error.to_string();
        let hint = if error.contains("status: 404") {
            "; there is no such repository or revision"
        } else if error.contains("status: 401") || error.contains("status: 403") {
            "; it may need a token, in HF_TOKEN"
        } else if error.contains("status: ") {
            ""
        } else {
            "; --offline takes what was fetched before"
        };
        format!("{}: {error}{hint}", self.endpoint)
    }
}

impl Listing {
    /// Files that lie where their names say.
    fn names(&self) -> BTreeSet<String> {
        let names = self.siblings.iter().map(|listed| &listed.rfilename);
        let plain = names.filter(|name| name.split('/').all(is_plain));
        plain.cloned().collect()
    }
}

/// Fetches the files of one commit.
struct Fetch<'a> {
    hub: &'a Hub,
    api: &'a Api,
    model: &'a HubModel,
    listing: &'a Listing,
    progress: &'a mut dyn FnMut(Progress),
    done_bytes: u64,
    total_bytes: u64,
}

impl<'a> Fetch<'a> {
    fn all<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) -> Result<(), String> {
        let listed: Vec<&Listed> = names
            .into_iter()
            .map(|name| self.listed(name))
            .collect::<Result<_, _>>()?;
        self.total_bytes += listed.iter().map(|listed| listed.size).sum::<u64>();
        for listed in listed {
            self.one(listed)
                .map_err(|reason| format!("{}: {reason}", listed.rfilename))?;
        }
        Ok(())
    }

    fn listed(&self, name: &str) -> Result<&'a Listed, String> {
        let mut siblings = self.listing.siblings.iter();
        siblings
            .find(|listed| listed.rfilename == name)
            .ok_or_else(|| format!("{INDEX} names {name}, which the repository lacks"))
    }

    fn one(&mut self, listed: &Listed) -> Result<(), String> {
        let repo = Hub::repo(self.model, &self.listing.sha);
        let cache = Cache::new(self.hub.folder.clone()).repo(repo.clone());
        let path = cache
            .pointer_path(&self.listing.sha)
            .join(&listed.rfilename);
        if !path.is_file() {
            if let Some(large) = &listed.lfs {
                forget_whole_part(&cache.blob_path(&large.sha256), listed.size);
            }
            let watch = Watch {
                progress: &mut *self.progress,
                before: self.done_bytes,
                of_file: 0,
                total_bytes: self.total_bytes,
            };
            self.api
                .repo(repo)
                .download_with_progress(&listed.rfilename, watch)
                .map_err(|error| self.hub.explain(&error))?;
            check(listed, &path)?;
        }
        self.done_bytes += listed.size;
        Ok(())
    }
}

/// A part that has all bytes cannot be resumed.
fn forget_whole_part(blob: &Path, size: u64) {
    let part = blob.with_extension("part");
    if fs::metadata(&part).is_ok_and(|metadata| metadata.len() >= size) {
        // If it stays, fetching says so.
        let _ = fs::remove_file(part);
    }
}

/// Forgets a file that is not what the hub lists.
fn check(listed: &Listed, path: &Path) -> Result<(), String> {
    let unreadable = |error| format!("could not read {}: {error}", path.display());
    let wrong = match &listed.lfs {
        None => None,
        Some(LargeFile { sha256 }) => {
            let found = digest::sha256(path, &mut |_| ()).map_err(unreadable)?;
            (found != *sha256).then(|| format!("its SHA-256 is {found}, not {sha256}"))
        }
    };
    match wrong {
        None => Ok(()),
        Some(wrong) => {
            for path in [fs::canonicalize(path), Ok(path.to_owned())] {
                path.and_then(fs::remove_file).map_err(unreadable)?;
            }
            Err(wrong)
        }
    }
}

/// Passes hf-hub's reports of one file on.
struct Watch<'a> {
    progress: &'a mut dyn FnMut(Progress),
    /// Bytes of the files before it.
    before: u64,
    of_file: u64,
    total_bytes: u64,
}

impl hf_hub::api::Progress for Watch<'_> {
    fn init(&mut self, _: usize, _: &str) {
        self.of_file = 0;
    }

    fn update(&mut self, n_bytes: usize) {
        self.of_file += n_bytes as u64;
        (self.progress)(Progress {
            task: "fetching the model",
            done_bytes: self.before + self.of_file,
            total_bytes: self.total_bytes,
        });
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests;
