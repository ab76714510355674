//! The plugins that requests can name.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use semver::Version;
use serde_json::{Map, Value};

use super::cache::sha256;
use super::compile::Compiler;
use super::loaded::Plugin;
use super::runtime::Runtime;
use super::store::{Store, StoreError, Stored};
use super::upload::{UploadCode, UploadError};

/// All plugins, in memory and, with a store, beyond. A plugin that is removed is hidden from new
/// requests; those that hold it go on with it.
pub struct Registry {
    runtime: Arc<Runtime>,
    compiler: Compiler,
    store: Option<Store>,
    /// By name, then newest version first.
    plugins: RwLock<Vec<Arc<Plugin>>>,
    /// Held while the list and the store change together, which writes files:
    /// whoever only reads the list does not wait for that.
    change: Mutex<()>,
}

/// What an upload came to.
#[derive(Clone, Debug)]
pub struct Uploaded {
    /// The plugin that the bytes are.
    pub plugin: Arc<Plugin>,
    /// False if the same bytes were registered already.
    pub created: bool,
}

/// Why nothing was removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    #[error("there is no plugin `{reference}`")]
    NotFound { reference: String },
    #[error("the plugin `{reference}` came with the server and cannot be removed")]
    Builtin { reference: String },
    #[error("{0}")]
    Store(String),
}

/// Where an upload comes from.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// With the server.
    Builtin,
    /// A request, with the name of its token.
    Upload(Option<&'a str>),
    /// A folder, which keeps it.
    Folder,
    /// The store.
    Stored(&'a Stored),
}

impl Registry {
    /// An empty registry whose plugins run in `runtime`.
    pub fn new(runtime: Arc<Runtime>, compiler: Compiler) -> Self {
        Self {
            runtime,
            compiler,
            store: None,
            plugins: RwLock::default(),
            change: Mutex::default(),
        }
    }

    /// Registers what the store holds, and keeps in it what is uploaded from
    /// now on. A plugin that cannot be loaded any more is left out and stays
    /// in the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn with_store(mut self, store: Store) -> Result<Self, StoreError> {
        for stored in store.list()? {
            let registered = store
                .read(&stored.digest)
                .map_err(|error| error.to_string())
                .and_then(|bytes| {
                    self.register(&bytes, Origin::Stored(&stored))
                        .map_err(|error| error.to_string())
                });
            if let Err(error) = registered {
                let digest = &stored.digest;
                tracing::error!("the stored plugin {digest} cannot be used: {error}");
            }
        }
        self.store = Some(store);
        Ok(self)
    }

    /// Registers a plugin: a component, or a core module that carries its
    /// component type. The same bytes again change nothing. Blocks for the
    /// time it takes to compile, at most twenty minutes and that of the
    /// uploads before it.
    ///
    /// # Errors
    /// When the bytes are no plugin, or another plugin has their name and
    /// version. Nothing has changed then.
    pub fn upload(&self, bytes: &[u8]) -> Result<Uploaded, UploadError> {
        self.upload_by(bytes, None)
    }

    /// The same, for whoever the token `by` belongs to.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn upload_by(&self, bytes: &[u8], by: Option<&str>) -> Result<Uploaded, UploadError> {
        self.register(bytes, Origin::Upload(by))
    }

    /// Registers a plugin that a folder keeps, the same way but for the store.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub(super) fn upload_from_folder(&self, bytes: &[u8]) -> Result<Uploaded, UploadError> {
        self.register(bytes, Origin::Folder)
    }

    /// Registers a plugin that comes with the server, the same way.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn upload_builtin(&self, bytes: &[u8]) -> Result<Uploaded, UploadError> {
        self.register(bytes, Origin::Builtin)
    }

    fn register(&self, bytes: &[u8], origin: Origin<'_>) -> Result<Uploaded, UploadError> {
        let digest = digest(bytes);
        if let Some(known) = self.known(&self.change(), bytes, &digest, origin)? {
            return Ok(known);
        }
        let builtin = matches!(origin, Origin::Builtin);
        if !matches!(origin, Origin::Builtin | Origin::Stored(_)) {
            self.check_room()?;
        }
        let mut plugin = self
            .compiler
            .compile(&self.runtime, bytes, &digest, builtin)?;
        match origin {
            Origin::Builtin | Origin::Folder => {}
            Origin::Upload(by) => plugin.uploaded_by = by.map(str::to_owned),
            Origin::Stored(stored) => {
                plugin.uploaded_at = stored.uploaded_at;
                plugin.uploaded_by.clone_from(&stored.uploaded_by);
            }
        }
        let change = self.change();
        // Another upload may have come first while this one was compiled.
        if let Some(known) = self.known(&change, bytes, &digest, origin)? {
            return Ok(known);
        }
        let plugins = self.list();
        let same =
            |other: &&Arc<Plugin>| (&other.name, &other.version) == (&plugin.name, &plugin.version);
        if let Some(other) = plugins.iter().find(same) {
            return Err(taken(&plugin, &other.digest));
        }
        let other_kind =
            |other: &&Arc<Plugin>| other.name == plugin.name && other.kind != plugin.kind;
        if let Some(other) = plugins.iter().find(other_kind) {
            return Err(UploadError::new(
                UploadCode::VersionConflict,
                format!(
                    "{} is a {}; a {} needs another name",
                    other.name, other.kind, plugin.kind
                ),
            ));
        }
        for shipped in plugins.iter().filter(|other| other.builtin) {
            check_stand_in(&plugin, shipped)?;
        }
        if let (Some(store), Origin::Upload(_) | Origin::Folder) = (&self.store, origin) {
            let known = store
                .digest_of(&plugin.name, &plugin.version)
                .map_err(not_kept)?;
            if let Some(other) = known.filter(|known| *known != digest) {
                return Err(taken(&plugin, &other));
            }
            if matches!(origin, Origin::Upload(_)) {
                store.keep(&plugin, bytes).map_err(not_kept)?;
            }
        }
        let plugin = Arc::new(plugin);
        let before =
            |other: &Arc<Plugin>| (&other.name, &plugin.version) < (&plugin.name, &other.version);
        let place = plugins.partition_point(before);
        self.write().insert(place, Arc::clone(&plugin));
        Ok(Uploaded {
            plugin,
            created: true,
        })
    }

    /// The plugin that these bytes are registered as, kept if it was uploaded: a
    /// folder may have had it first. Neither a removal nor the same upload comes
    /// in between.
    fn known(
        &self,
        _change: &MutexGuard<'_, ()>,
        bytes: &[u8],
        digest: &str,
        origin: Origin<'_>,
    ) -> Result<Option<Uploaded>, UploadError> {
        let Some(plugin) = self.get(digest) else {
            return Ok(None);
        };
        if let (Some(store), Origin::Upload(_), false) = (&self.store, origin, plugin.builtin) {
            store.keep(&plugin, bytes).map_err(not_kept)?;
        }
        Ok(Some(Uploaded {
            plugin,
            created: false,
        }))
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Arc<Plugin>>> {
        self.plugins.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uploads that are compiled at the same time may come to one more each.
    fn check_room(&self) -> Result<(), UploadError> {
        let plugins = self.plugins.read().unwrap_or_else(PoisonError::into_inner);
        let n = plugins.iter().filter(|plugin| !plugin.builtin).count();
        let most = self.runtime.limits().max_plugins;
        if n < most as usize {
            return Ok(());
        }
        let message = format!("{n} plugins are registered, the limit is {most}; remove some");
        Err(UploadError::new(UploadCode::RegistryFull, message))
    }

    /// The plugin that `name` (its newest version, pre-releases last), `name@version` or
    /// `sha256:…` refers to.
    pub fn get(&self, reference: &str) -> Option<Arc<Plugin>> {
        let reference = Reference::parse(reference)?;
        let plugins = self.plugins.read().unwrap_or_else(PoisonError::into_inner);
        // Newest first; a pre-release stands in only where nothing else does.
        plugins
            .iter()
            .filter(|plugin| reference.means(plugin))
            .min_by_key(|plugin| !plugin.version.pre.is_empty())
            .cloned()
    }

    /// All plugins, by name, then newest version first.
    pub fn list(&self) -> Vec<Arc<Plugin>> {
        self.plugins
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Hides the plugin that `reference` means from new requests; a name means
    /// all its versions but those that came with the server. Returns what was
    /// removed.
    ///
    /// # Errors
    /// When there is none, or only what came with the server.
    pub fn remove(&self, reference: &str) -> Result<Vec<Arc<Plugin>>, RemoveError> {
        let _change = self.change();
        let plugins = self.list();
        let meant = |plugin: &Arc<Plugin>| {
            Reference::parse(reference).is_some_and(|reference| reference.means(plugin))
        };
        if !plugins.iter().any(meant) {
            return Err(RemoveError::NotFound {
                reference: reference.to_owned(),
            });
        }
        let goes = |plugin: &Arc<Plugin>| meant(plugin) && !plugin.builtin;
        let digests: Vec<_> = plugins
            .iter()
            .filter(|plugin| goes(plugin))
            .map(|plugin| plugin.digest.as_str())
            .collect();
        if digests.is_empty() {
            return Err(RemoveError::Builtin {
                reference: reference.to_owned(),
            });
        }
        if let Some(store) = &self.store {
            store
                .remove(&digests)
                .map_err(|error| RemoveError::Store(error.to_string()))?;
        }
        Ok(self.write().extract_if(.., |plugin| goes(plugin)).collect())
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn not_kept(error: StoreError) -> UploadError {
    UploadError::new(UploadCode::Internal, format!("it cannot be kept: {error}"))
}

/// Other bytes have a plugin's name and version.
fn taken(plugin: &Plugin, digest: &str) -> UploadError {
    UploadError::new(
        UploadCode::VersionConflict,
        format!(
            "other bytes are registered as {}@{}, with the digest {digest}; upload a new version",
            plugin.name, plugin.version
        ),
    )
}

/// How a plugin is named.
enum Reference<'a> {
    Name(&'a str),
    NameVersion(&'a str, Version),
    Digest(&'a str),
}

impl<'a> Reference<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        if text.starts_with("sha256:") {
            return Some(Self::Digest(text));
        }
        match text.split_once('@') {
            Some((name, version)) => Some(Self::NameVersion(name, Version::parse(version).ok()?)),
            None => Some(Self::Name(text)),
        }
    }

    fn means(&self, plugin: &Plugin) -> bool {
        match self {
            Self::Name(name) => plugin.name == *name,
            Self::NameVersion(name, version) => plugin.name == *name && plugin.version == *version,
            Self::Digest(digest) => plugin.digest == *digest,
        }
    }
}

/// `sha256:` and the digest in lower-case hexadecimal.
fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

/// A plugin with the name of a shipped one takes its place in the default chain,
/// which gives it no parameters where a request has none.
fn check_stand_in(plugin: &Plugin, shipped: &Plugin) -> Result<(), UploadError> {
    let nothing = Value::Object(Map::new());
    if plugin.name != shipped.name || shipped.validate_params(&nothing).is_err() {
        return Ok(());
    }
    plugin.validate_params(&nothing).map_err(|error| {
        let message = format!(
            "{} comes with the server, and requests that say nothing of it use it without \
             parameters, which this one refuses: {}; take another name, or let every parameter \
             have a default",
            shipped.name, error.message
        );
        UploadError::new(UploadCode::VersionConflict, message)
    })
}
