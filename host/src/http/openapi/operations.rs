//! Every operation: what it takes, what it answers and how it fails.

use super::super::errors::Code;
use crate::telemetry::MEDIA_TYPE;

/// One method of one path.
pub(super) struct Operation {
    pub(super) path: &'static str,
    /// In lower case.
    pub(super) method: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) body: Body,
    pub(super) answers: &'static [(u16, Answer)],
    /// How it fails, beside what every operation of its kind may.
    errors: &'static [Code],
    /// Whether a token is needed where there are some. Such operations are
    /// refused while the server stops.
    pub(super) needs_token: bool,
}

pub(super) enum Body {
    None,
    /// Of this schema.
    Json(&'static str),
    /// A plugin.
    Component,
}

pub(super) enum Answer {
    /// Of this schema.
    Json(&'static str),
    /// A generated text, whole or in chunks.
    Generated {
        whole: &'static str,
        chunk: &'static str,
    },
    /// Text of this media type.
    Text(&'static str),
    /// The document itself.
    Document,
}

/// Of operations that need a token.
const GUARDED: [Code; 5] = [
    Code::Unauthorized,
    Code::Forbidden,
    Code::InternalError,
    Code::EngineError,
    Code::Stopped,
];

/// Of operations with a body.
const WITH_BODY: [Code; 3] = [Code::InvalidBody, Code::BodyTimeout, Code::BodyTooLarge];

const GENERATION: &[Code] = &[
    Code::UnknownField,
    Code::UnsupportedField,
    Code::MissingField,
    Code::InvalidValue,
    Code::ConflictingFields,
    Code::InvalidChain,
    Code::TemplateError,
    Code::ContextLengthExceeded,
    Code::ModelNotFound,
    Code::PluginNotFound,
    Code::PluginError,
    Code::RateLimited,
    Code::Overloaded,
    Code::Cancelled,
    Code::PluginDisabled,
    Code::RequestTimeout,
];

impl Operation {
    /// Every way in which it can fail, in the order of the error table.
    pub(super) fn codes(&self) -> impl Iterator<Item = Code> {
        Code::ALL.iter().copied().filter(|code| {
            self.errors.contains(code)
                || self.needs_token && GUARDED.contains(code)
                || !matches!(self.body, Body::None) && WITH_BODY.contains(code)
        })
    }

    /// The parameters in its path.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}

const fn get(
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    answers: &'static [(u16, Answer)],
    errors: &'static [Code],
) -> Operation {
    Operation {
        path,
        method: "get",
        id,
        summary,
        body: Body::None,
        answers,
        errors,
        needs_token: true,
    }
}

pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        method: "post",
        body: Body::Json("CompletionRequest"),
        ..get(
            "/v1/completions",
            "createCompletion",
            "Continue a text.",
            &[(
                200,
                Answer::Generated {
                    whole: "Completion",
                    chunk: "CompletionChunk",
                },
            )],
            GENERATION,
        )
    },
    Operation {
        method: "post",
        body: Body::Json("ChatCompletionRequest"),
        ..get(
            "/v1/chat/completions",
            "createChatCompletion",
            "Answer a conversation.",
            &[(
                200,
                Answer::Generated {
                    whole: "ChatCompletion",
                    chunk: "ChatCompletionChunk",
                },
            )],
            GENERATION,
        )
    },
    get(
        "/v1/models",
        "listModels",
        "The loaded model, in a list.",
        &[(200, Answer::Json("ModelList"))],
        &[],
    ),
    get(
        "/v1/models/{id}",
        "getModel",
        "A model. Its name may contain slashes.",
        &[(200, Answer::Json("Model"))],
        &[Code::ModelNotFound, Code::NotFound],
    ),
    get(
        "/v1/dialects",
        "listDialects",
        "The dialects, each with the chain it stands for.",
        &[(200, Answer::Json("DialectList"))],
        &[],
    ),
    get(
        "/v1/plugins",
        "listPlugins",
        "The plugins that requests can name.",
        &[(200, Answer::Json("PluginList"))],
        &[],
    ),
    Operation {
        method: "put",
        body: Body::Component,
        ..get(
            "/v1/plugins",
            "uploadPlugin",
            "Register a plugin: 201 if it is new, 200 if these bytes were there.",
            &[(200, Answer::Json("Plugin")), (201, Answer::Json("Plugin"))],
            &[Code::InvalidPlugin, Code::PluginConflict, Code::RateLimited],
        )
    },
    get(
        "/v1/plugins/{reference}",
        "getPlugin",
        "A plugin by name, name@version or digest, with its last messages.",
        &[(200, Answer::Json("Plugin"))],
        &[Code::PluginNotFound, Code::NotFound],
    ),
    Operation {
        method: "delete",
        ..get(
            "/v1/plugins/{reference}",
            "removePlugin",
            "Hide what the reference names from new requests.",
            &[(200, Answer::Json("RemovedPlugins"))],
            &[Code::PluginNotFound, Code::NotFound, Code::PluginConflict],
        )
    },
    Operation {
        method: "post",
        ..get(
            "/v1/plugins/{reference}/enable",
            "enablePlugin",
            "Let a plugin that failed too often be used again.",
            &[(200, Answer::Json("Plugin"))],
            &[Code::PluginNotFound, Code::NotFound],
        )
    },
    Operation {
        needs_token: false,
        ..get(
            "/health",
            "getHealth",
            "Whether the process is worth keeping: its engine gets on.",
            &[(200, Answer::Json("Status"))],
            &[Code::Stopped, Code::InternalError],
        )
    },
    Operation {
        needs_token: false,
        ..get(
            "/ready",
            "getReadiness",
            "Whether requests are taken.",
            &[(200, Answer::Json("Status"))],
            &[Code::Stopped, Code::InternalError],
        )
    },
    get(
        "/metrics",
        "getMetrics",
        "Figures for Prometheus. Needs the scope `admin`.",
        &[(200, Answer::Text(MEDIA_TYPE))],
        &[],
    ),
    get(
        "/openapi.json",
        "getDocument",
        "This document.",
        &[(200, Answer::Document)],
        &[],
    ),
];
