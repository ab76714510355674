//! The texts that are scored: whole files, or a field of each line of JSON
//! lines.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::plugin::sha256;

/// Why a file has no text to score.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is not UTF-8 from byte {at} on", path.display())]
    Encoding { path: PathBuf, at: usize },
    #[error("{}, line {line}: {message}", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        message: String,
    },
}

/// A file that was read.
#[derive(Debug, Serialize)]
pub(super) struct Source {
    path: PathBuf,
    sha256: String,
    n_documents: usize,
}

/// The documents of a file: if its name ends in `.jsonl`, the text in `field`
/// of each line that is not empty, else all of it.
pub(super) fn read(path: &Path, field: &str) -> Result<(Source, Vec<String>), DocumentError> {
    let bytes = std::fs::read(path).map_err(|source| DocumentError::Read {
        path: path.to_owned(),
        source,
    })?;
    let sha256 = sha256(&bytes);
    let text = String::from_utf8(bytes).map_err(|error| DocumentError::Encoding {
        path: path.to_owned(),
        at: error.utf8_error().valid_up_to(),
    })?;
    let is_lines = path
        .extension()
        .is_some_and(|extension| extension == "jsonl");
    let documents = if is_lines {
        let lines = text.lines().enumerate();
        lines
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(index, line)| {
                of_line(line, field).map_err(|message| DocumentError::Line {
                    path: path.to_owned(),
                    line: index + 1,
                    message,
                })
            })
            .collect::<Result<Vec<_>, _>>()?
    } else {
        vec![text]
    };
    let source = Source {
        path: path.to_owned(),
        sha256,
        n_documents: documents.len(),
    };
    Ok((source, documents))
}

fn of_line(line: &str, field: &str) -> Result<String, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    match value.get(field) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("`{field}` is {other}, not a string")),
        None => Err(format!(
            "there is no field `{field}`; --field names another"
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read_as(name: &str, content: &[u8], field: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        read(&path, field)
            .map(|(_, documents)| documents)
            .map_err(|error| error.to_string().replace(path.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn a_file_is_a_document_and_so_is_each_line_of_json() {
        assert_eq!(
            read_as("a.txt", b"one\ntwo\n", "text").unwrap(),
            ["one\ntwo\n"]
        );
        let lines = b"{\"text\": \"one\"}\n\n{\"page\": \"x\", \"text\": \"two\"}\n";
        assert_eq!(read_as("a.jsonl", lines, "text").unwrap(), ["one", "two"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let error = |name, content: &[u8]| read_as(name, content, "page").unwrap_err();
        assert_eq!(
            error("a.txt", b"ab\xff"),
            "FILE is not UTF-8 from byte 2 on"
        );
        let lines = b"{\"page\": \"one\"}\n{\"text\": \"two\"}\n";
        assert_eq!(
            error("a.jsonl", lines),
            "FILE, line 2: there is no field `page`; --field names another"
        );
        assert_eq!(
            error("a.jsonl", b"{\"page\": 7}"),
            "FILE, line 1: `page` is 7, not a string"
        );
        assert!(error("a.jsonl", b"{").starts_with("FILE, line 1: EOF"));
    }
}
