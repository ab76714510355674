//! Builds every component of the repository, or the named ones.
//!
//! ```text
//! cargo run --release -p plugin-builder              # all
//! cargo run --release -p plugin-builder -- penalties # one
//! cargo run --release -p plugin-builder -- --check   # fails if one is stale
//! ```
//!
//! Components are committed, so that running the server needs no WebAssembly
//! toolchain. Beside each lies the digest of the source that made it.

mod component;
mod source;
mod toolchain;

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{component::Component, toolchain::Toolchain};

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("the builder lies in plugins/builder")?;
    let mut components = component::all(root)?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--check"] {
        return check(root, &components);
    }
    for name in &arguments {
        if !components.iter().any(|component| component.name == *name) {
            let names: Vec<_> = components.iter().map(|each| each.name.as_str()).collect();
            bail!("no component `{name}`; there are {}", names.join(", "));
        }
    }
    if !arguments.is_empty() {
        components.retain(|component| arguments.contains(&component.name));
    }
    build(root, &components)
}

fn build(root: &Path, components: &[Component]) -> Result<()> {
    let modules = Toolchain::find()?.build(root, components)?;
    for (component, module) in components.iter().zip(modules) {
        let bytes = component::encode(&module)
            .with_context(|| format!("making a component of {}", component.name))?;
        fs::create_dir_all(&component.dist)?;
        fs::write(component.file("wasm"), &bytes)?;
        fs::write(
            component.file("source"),
            source::digest(root, component)? + "\n",
        )?;
        println!("{:<16} {:>7} bytes", component.name, bytes.len());
    }
    Ok(())
}

fn check(root: &Path, components: &[Component]) -> Result<()> {
    let mut stale = Vec::new();
    for component in components {
        let recorded = fs::read_to_string(component.file("source")).unwrap_or_default();
        if !component.file("wasm").is_file() || recorded.trim() != source::digest(root, component)?
        {
            stale.push(component.name.as_str());
        }
    }
    if !stale.is_empty() {
        bail!(
            "the source of {} has changed since it was built; run `cargo run --release -p plugin-builder`",
            stale.join(", ")
        );
    }
    println!("{} components are up to date", components.len());
    Ok(())
}
