//! The digest of the source that makes a component.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::component::{Component, entries};

/// SHA-256 over a component's own files, the SDK with its contract, how it is built,
/// and the locked versions of everything it is linked from, as lower-case hex.
pub(crate) fn digest(root: &Path, component: &Component) -> Result<String> {
    let mut files = BTreeSet::new();
    for path in component
        .sources
        .iter()
        .cloned()
        .chain(["plugins/sdk", "plugins/builder/src", "Cargo.toml"].map(|path| root.join(path)))
    {
        collect(&path, &mut files)?;
    }
    let mut hash = Sha256::new();
    for path in files {
        let name = path
            .strip_prefix(root)?
            .to_str()
            .context("a source's name is not UTF-8")?;
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        hash.update(format!("{name}\n{}\n", bytes.len()));
        hash.update(bytes);
    }
    let lock = fs::read_to_string(root.join("Cargo.lock"))?;
    for package in locked(&lock, &component.package) {
        hash.update(package);
    }
    let mut hex = String::new();
    for byte in hash.finalize() {
        write!(hex, "{byte:02x}")?;
    }
    Ok(hex)
}

fn collect(path: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    if path.is_dir() {
        for entry in entries(path)? {
            collect(&entry, files)?;
        }
    } else {
        files.insert(path.to_owned());
    }
    Ok(())
}

/// The lock file's entries for `package` and what it depends on, in the file's
/// order.
fn locked<'a>(lock: &'a str, package: &str) -> Vec<&'a str> {
    let packages: Vec<_> = lock.split("\n[[package]]\n").skip(1).collect();
    let mut wanted = vec![format!("\"{package}\"")];
    let mut found = BTreeSet::new();
    while let Some(name) = wanted.pop() {
        let (name, version) = name.split_once(' ').unwrap_or((name.trim_matches('"'), ""));
        let (name, version) = (name.trim_matches('"'), version.trim_matches('"'));
        for (index, entry) in packages.iter().enumerate() {
            let named = entry.starts_with(&format!("name = \"{name}\"\n"));
            let versioned =
                version.is_empty() || entry.contains(&format!("\nversion = \"{version}\"\n"));
            if named && versioned && found.insert(index) {
                let lines = entry.lines().map(str::trim);
                wanted.extend(lines.filter_map(|line| line.strip_suffix(',').map(str::to_owned)));
            }
        }
    }
    found.into_iter().map(|index| packages[index]).collect()
}

#[cfg(test)]
mod tests {
    use super::locked;

    const LOCK: &str = "version = 4

[[package]]
name = \"a\"
version = \"1.0.0\"
dependencies = [
 \"b\",
 \"c 2.0.0\",
]

[[package]]
name = \"b\"
version = \"0.1.0\"

[[package]]
name = \"c\"
version = \"1.0.0\"

[[package]]
name = \"c\"
version = \"2.0.0\"

[[package]]
name = \"d\"
version = \"1.0.0\"
dependencies = [
 \"a\",
]
";

    #[test]
    fn follows_dependencies_and_their_versions() {
        let names: Vec<_> = locked(LOCK, "a")
            .iter()
            .map(|entry| entry.lines().take(2).collect::<Vec<_>>())
            .collect();
        assert_eq!(
            names,
            [
                ["name = \"a\"", "version = \"1.0.0\""],
                ["name = \"b\"", "version = \"0.1.0\""],
                ["name = \"c\"", "version = \"2.0.0\""],
            ]
        );
    }
}
