//! What each module may know of the others, so that a reader can open one
//! without the rest.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Modules, the modules of this crate they may use, and the foreign crates
/// that are not theirs.
const RULES: [(&str, &[&str], &[&str]); 6] = [
    ("engine", &[], &["axum", "wasmtime", "mlx_rs", "tokenizers"]),
    ("mlx", &["engine"], &["axum", "wasmtime", "tokenizers"]),
    ("text", &[], &["axum", "wasmtime", "mlx_rs"]),
    ("plugin", &["engine"], &["axum", "mlx_rs", "tokenizers"]),
    (
        "http",
        &["engine", "plugin", "telemetry", "text"],
        &["wasmtime", "mlx_rs", "tokenizers"],
    ),
    // The shipped sampler comes from `assemble`; nothing here needs a model.
    (
        "author",
        &["assemble", "engine", "plugin"],
        &["wasmtime", "mlx_rs", "tokenizers", "rusqlite"],
    ),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// The modules of this crate that code names after `crate::`, in braces too.
fn named_modules(source: &str) -> Vec<String> {
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    code.split("crate::").skip(1).flat_map(leading).collect()
}

/// The identifier that `rest` begins with, or those directly in its braces.
fn leading(rest: &str) -> Vec<String> {
    let (mut names, mut name, mut depth) = (Vec::new(), String::new(), 0);
    let mut at_start = true;
    for c in rest.chars() {
        if c.is_alphanumeric() || c == '_' {
            if at_start {
                name.push(c);
            }
            continue;
        }
        if !name.is_empty() {
            names.push(std::mem::take(&mut name));
        }
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return names;
        }
        at_start = depth == 1 && matches!(c, '{' | ',') || at_start && c == ' ';
    }
    names
}

#[test]
fn names_in_braces_are_found() {
    let source = "use crate::engine::Row;\nuse crate::{\n    mlx::{self, text},\n    plugin,\n};";
    assert_eq!(named_modules(source), ["engine", "mlx", "plugin"]);
}

#[test]
fn modules_know_only_what_they_may() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (module, allowed, foreign) in RULES {
        let files = sources(&root.join(module));
        assert!(files.len() > 3, "{module} has moved");
        for file in files {
            let source = fs::read_to_string(&file).unwrap();
            for other in named_modules(&source) {
                let is_module =
                    root.join(&other).is_dir() || root.join(format!("{other}.rs")).is_file();
                assert!(
                    !is_module || other == module || allowed.contains(&other.as_str()),
                    "{} uses {other}",
                    file.display()
                );
            }
            for crate_name in foreign {
                let used = source.contains(&format!("use {crate_name}"))
                    || source.contains(&format!("{crate_name}::"));
                assert!(!used, "{} uses {crate_name}", file.display());
            }
        }
    }
}
