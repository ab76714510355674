//! Why an upload is refused.

use serde::{Deserialize, Serialize};

/// An upload that did not become a plugin. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct UploadError {
    /// What kind of failure it is.
    pub code: UploadCode,
    /// One sentence for the plugin's author.
    pub message: String,
}

impl UploadError {
    pub(super) fn new(code: UploadCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }

    /// The stable name of the failure.
    pub fn code(&self) -> &'static str {
        self.code.name()
    }
}

/// Kinds of failed uploads. All but the last three are the upload's own fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UploadCode {
    TooLarge,
    NotAComponent,
    TruncatedComponent,
    TextComponent,
    NativeCode,
    InvalidComponent,
    NoKind,
    SeveralKinds,
    UnknownImport,
    ContractVersion,
    WrongType,
    DescribeFailed,
    InvalidDescription,
    TooComplex,
    CompileTimeout,
    CompileCrashed,
    /// Other bytes are registered under this name and version.
    VersionConflict,
    /// No more plugins can be registered.
    RegistryFull,
    /// The server could not do its part.
    Internal,
}

impl UploadCode {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::NotAComponent => "not_a_component",
            Self::TruncatedComponent => "truncated_component",
            Self::TextComponent => "text_component",
            Self::NativeCode => "native_code",
            Self::InvalidComponent => "invalid_component",
            Self::NoKind => "no_kind",
            Self::SeveralKinds => "several_kinds",
            Self::UnknownImport => "unknown_import",
            Self::ContractVersion => "contract_version",
            Self::WrongType => "wrong_type",
            Self::DescribeFailed => "describe_failed",
            Self::InvalidDescription => "invalid_description",
            Self::TooComplex => "too_complex",
            Self::CompileTimeout => "compile_timeout",
            Self::CompileCrashed => "compile_crashed",
            Self::VersionConflict => "version_conflict",
            Self::RegistryFull => "registry_full",
            Self::Internal => "internal",
        }
    }
}
