//! Which files of a repository are needed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::Path,
};

use serde::Deserialize;

use super::name::{is_gguf, is_plain};

pub(super) const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// What a folder may have beside its weights, fetched before them: so a folder
/// with its weights has all.
pub(super) const SMALL_FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    INDEX,
];

pub(super) enum Wanted {
    /// This GGUF file.
    File(String),
    /// All that a folder of safetensors needs.
    Folder,
}

/// What to take of a repository with these files.
pub(super) fn wanted(names: &BTreeSet<String>, file: Option<&str>) -> Result<Wanted, String> {
    let ggufs: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| is_gguf(name))
        .collect();
    if let Some(file) = file {
        return if ggufs.contains(&file) {
            Ok(Wanted::File(file.to_owned()))
        } else {
            let found = ggufs.join(", ");
            Err(format!("it has no such file; its GGUF files: {found}"))
        };
    }
    if names.iter().any(|name| name.ends_with(".safetensors")) {
        return Ok(Wanted::Folder);
    }
    match ggufs.as_slice() {
        [] => Err("it has neither safetensors nor GGUF files".to_owned()),
        [only] => Ok(Wanted::File((*only).to_owned())),
        many => Err(format!(
            "it has several GGUF files, of which one must be named: {}",
            many.join(", ")
        )),
    }
}

/// The files of weights: those that the index in `snapshot` names, if there
/// is one.
pub(super) fn weights(names: &BTreeSet<String>, snapshot: &Path) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    if names.contains(INDEX) {
        let wrong = |error: &dyn fmt::Display| format!("{INDEX}: {error}");
        let text = fs::read(snapshot.join(INDEX)).map_err(|error| wrong(&error))?;
        let index: Index = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
        let files: BTreeSet<String> = index.weight_map.into_values().collect();
        return match files.iter().find(|file| !is_plain(file)) {
            None => Ok(files.into_iter().collect()),
            Some(file) => Err(wrong(&format!("{file:?} is no file's name"))),
        };
    }
    if names.contains(SINGLE) {
        return Ok(vec![SINGLE.to_owned()]);
    }
    let whole = names.iter().filter(|name| name.ends_with(".safetensors"));
    Ok(whole.filter(|name| is_plain(name)).cloned().collect())
}
