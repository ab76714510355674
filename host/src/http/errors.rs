//! Every error a client can meet, in one table, and the body that carries it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Declares [`Code`] from one row per error: variant, stable name, status,
/// OpenAI's `type`, and what it means.
macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $kind:literal $doc:literal;)*) => {
        /// Stable identifier of an error, the `code` of its body.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $doc] $variant,)*
        }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The code as clients see it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// HTTP status of an answer that carries it.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// The `type` of its body.
            pub fn kind(self) -> &'static str {
                match self { $(Self::$variant => $kind,)* }
            }

            /// One sentence for the documentation.
            pub fn summary(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }
        }
    };
}

codes! {
    InvalidBody "invalid_body" 400 "invalid_request_error" "The body is not one JSON object in UTF-8, or it names a key twice.";
    UnknownField "unknown_field" 400 "invalid_request_error" "The server knows no field of this name.";
    UnsupportedField "unsupported_field" 400 "invalid_request_error" "The field is known, but this version honours only its neutral value.";
    MissingField "missing_field" 400 "invalid_request_error" "A required field is absent or null.";
    InvalidValue "invalid_value" 400 "invalid_request_error" "A field has the wrong type or is out of range.";
    ConflictingFields "conflicting_fields" 400 "invalid_request_error" "Two fields contradict each other, or one makes the other void.";
    InvalidChain "invalid_chain" 400 "invalid_request_error" "The stages do not form token processors, then logits processors, then one sampler.";
    TemplateError "template_error" 400 "invalid_request_error" "The model's chat template refused the messages.";
    ContextLengthExceeded "context_length_exceeded" 400 "invalid_request_error" "The prompt leaves no room for a token in the model's context.";
    InvalidPlugin "invalid_plugin" 400 "invalid_request_error" "The uploaded bytes are not a usable plugin.";
    Unauthorized "unauthorized" 401 "authentication_error" "The request carries no token that the server knows.";
    Forbidden "forbidden" 403 "permission_error" "The token's scopes, or the server's configuration, do not allow this.";
    ModelNotFound "model_not_found" 404 "invalid_request_error" "The server has no model of this name.";
    PluginNotFound "plugin_not_found" 404 "invalid_request_error" "The registry has no plugin under this reference.";
    NotFound "not_found" 404 "invalid_request_error" "There is no such route.";
    MethodNotAllowed "method_not_allowed" 405 "invalid_request_error" "The route exists, but not for this method.";
    BodyTimeout "body_timeout" 408 "invalid_request_error" "The body did not arrive in time.";
    PluginConflict "plugin_conflict" 409 "invalid_request_error" "The registry holds other bytes under this name and version, a plugin that must stay, or as many plugins as it may.";
    BodyTooLarge "body_too_large" 413 "invalid_request_error" "The body exceeds the limit for this route.";
    PluginError "plugin_error" 422 "plugin_error" "A stage of the request's chain failed while it ran; the message names stage and cause.";
    EngineError "engine_error" 500 "server_error" "The model failed, and with it the request.";
    RateLimited "rate_limited" 429 "rate_limit_error" "The caller uploads too often, or has too many requests under way; try again after the seconds in `retry-after`.";
    InternalError "internal_error" 500 "server_error" "A defect of the server.";
    Cancelled "cancelled" 503 "server_error" "The sequence was cancelled because its reader fell too far behind, or the engine ended.";
    Overloaded "overloaded" 429 "rate_limit_error" "Too many requests wait already; try again after the seconds in `retry-after`.";
    PluginDisabled "plugin_disabled" 503 "server_error" "A plugin of the request's chain failed too often and is off until it is enabled again.";
    RequestTimeout "request_timeout" 504 "server_error" "The request took longer than the server lets one run.";
    Stopped "stopped" 503 "server_error" "The server is stopping, or its engine has stopped; another, or the next one, may answer.";
}

/// An error as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.name())]
pub struct ApiError {
    /// What went wrong.
    pub code: Code,
    /// One sentence that names the field, its value and what is allowed.
    pub message: String,
    /// The field at fault, as the client wrote it.
    pub param: Option<String>,
    /// Seconds after which it may be gone.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// An error that concerns no single field.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            param: None,
            retry_after: (code == Code::Overloaded).then_some(1),
        }
    }

    /// The same, with the seconds after which it may be gone.
    #[must_use]
    pub fn after(self, seconds: u32) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// An error of the field `param`.
    pub fn of(code: Code, param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(code, message)
        }
    }

    /// The field `param` holds `value`, which is not what it expects.
    pub fn invalid(param: &str, value: &Value, expected: impl std::fmt::Display) -> Self {
        let message = format!("`{param}` is {}; it must be {expected}", shown(value));
        Self::of(Code::InvalidValue, param, message)
    }

    /// The body: `{"error": {...}}`.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.code.kind(),
            "param": self.param,
            "code": self.code.name(),
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            let seconds = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// A JSON value for an error message, cut where it grows long.
pub(super) fn shown(value: &Value) -> String {
    const LIMIT: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LIMIT) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_statuses_are_errors() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!((400..600).contains(&code.status()), "{}", code.name());
            let server_side = code.kind() == "server_error";
            assert_eq!(server_side, code.status() >= 500, "{}", code.name());
        }
    }

    #[test]
    fn long_values_are_cut_at_a_character() {
        assert_eq!(shown(&json!("ab")), "\"ab\"");
        let cut = shown(&json!("é".repeat(100)));
        assert_eq!(cut, format!("\"{}…", "é".repeat(59)));
    }
}
