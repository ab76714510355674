//! What is built from what, and how a module becomes a component.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use wit_component::ComponentEncoder;

/// The package whose examples are the test components.
pub(crate) const TEST_PACKAGE: &str = "test-guests";

#[derive(Debug)]
pub(crate) struct Component {
    pub(crate) name: String,
    /// The package that holds it.
    pub(crate) package: String,
    /// Whether it is an example of the package, not its library.
    pub(crate) is_example: bool,
    /// The files that it alone is made of.
    pub(crate) sources: Vec<PathBuf>,
    /// Where the built component goes.
    pub(crate) dist: PathBuf,
}

impl Component {
    pub(crate) fn file(&self, extension: &str) -> PathBuf {
        self.dist.join(format!("{}.{extension}", self.name))
    }
}

/// Every component: the crates of `plugins/` and `examples/` that make one,
/// and the files of `tests/guests/`.
pub(crate) fn all(root: &Path) -> Result<Vec<Component>> {
    let mut components = Vec::new();
    for folder in ["plugins", "examples"] {
        for path in entries(&root.join(folder))? {
            let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
            if manifest.contains("\"cdylib\"") {
                let name = stem(&path)?;
                components.push(Component {
                    package: name.clone(),
                    name,
                    is_example: false,
                    sources: vec![path],
                    dist: root.join(folder).join("dist"),
                });
            }
        }
    }
    let guests = root.join("tests/guests");
    for path in entries(&guests)? {
        if path.extension().is_some_and(|extension| extension == "rs") {
            components.push(Component {
                name: stem(&path)?,
                package: TEST_PACKAGE.into(),
                is_example: true,
                sources: vec![path, guests.join("Cargo.toml"), guests.join("src")],
                dist: guests.join("dist"),
            });
        }
    }
    Ok(components)
}

/// What lies in a folder, sorted.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths = read
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn stem(path: &Path) -> Result<String> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    stem.map(str::to_owned)
        .with_context(|| format!("the name {} is not UTF-8", path.display()))
}

/// Turns a core module that carries its component type into a component.
pub(crate) fn encode(module: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(module).with_context(|| format!("reading {}", module.display()))?;
    ComponentEncoder::default()
        .validate(true)
        .module(&bytes)?
        .encode()
}
