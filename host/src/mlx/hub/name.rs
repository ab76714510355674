//! How a model of the hub is named.

use std::{fmt, path::Path, str::FromStr};

const FORM: &str = "expected hf:OWNER/NAME[/FILE.gguf][@REVISION]";

/// A model of the hub: `hf:OWNER/NAME[/FILE.gguf][@REVISION]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubModel {
    /// `OWNER/NAME`.
    pub(super) repository: String,
    /// The GGUF file; none for a folder of safetensors, or the only GGUF file.
    pub(super) file: Option<String>,
    /// A branch, a tag or a commit.
    pub(super) revision: String,
}

impl FromStr for HubModel {
    type Err = String;

    /// What follows `hf:`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, revision) = text.rsplit_once('@').unwrap_or((text, "main"));
        let parts: Vec<&str> = name.split('/').collect();
        let all_plain = |text: &str| text.split('/').all(is_plain);
        let (repository, file) = match parts.as_slice() {
            [_, _] => (name.to_owned(), None),
            [owner, repository, file @ ..] if is_gguf(name) => {
                (format!("{owner}/{repository}"), Some(file.join("/")))
            }
            _ => return Err(FORM.to_owned()),
        };
        if !all_plain(name) || !all_plain(revision) {
            return Err(format!("{FORM}, of letters, digits, `-`, `_` and `.`"));
        }
        Ok(Self {
            repository,
            file,
            revision: revision.to_owned(),
        })
    }
}

impl HubModel {
    /// `OWNER/NAME`.
    pub fn repository(&self) -> &str {
        &self.repository
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repository)?;
        if let Some(file) = &self.file {
            write!(f, "/{file}")?;
        }
        write!(f, "@{}", self.revision)
    }
}

/// Whether a part of a path names a file or folder, and nothing else.
pub(super) fn is_plain(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !part.is_empty() && part.chars().all(plain) && part != "." && part != ".."
}

pub(super) fn is_gguf(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension == "gguf")
}

pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models() {
        let parsed = |text: &str| text.parse::<HubModel>();
        let model = parsed("Qwen/Qwen3-0.6B@refs/pr/1").unwrap();
        assert_eq!(model.repository(), "Qwen/Qwen3-0.6B");
        assert_eq!(model.to_string(), "hf:Qwen/Qwen3-0.6B@refs/pr/1");
        assert_eq!(parsed("a/b").unwrap().to_string(), "hf:a/b@main");
        let model = parsed("a/b/sub/c.gguf@1.0").unwrap();
        assert_eq!(model.to_string(), "hf:a/b/sub/c.gguf@1.0");
        for wrong in [
            "",
            "a",
            "a/",
            "/a",
            "a/b/c",
            "a/..",
            "a/b/../c.gguf",
            "a/b@",
            "a/b@../x",
            "a b/c",
            "a/b@x y",
        ] {
            let error = parsed(wrong).unwrap_err();
            assert!(error.contains("hf:OWNER/NAME"), "{wrong}: {error}");
        }
    }
}
