//! What browsers and slow lines need, where the configuration asks for it.

use std::str::FromStr;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use tower_http::compression::CompressionLayer;
use tower_http::cors::{Any, CorsLayer};

use super::Service;
use super::hosts::Host;
use super::log::AccessLog;
use crate::telemetry::Traces;

/// What is seen of requests from outside: whose pages may read answers, whether
/// answers are compressed, and where requests are written down.
#[derive(Clone, Debug, Default)]
pub struct Web {
    pub origins: Vec<Origin>,
    /// Names by which a server without tokens may be spoken to, beside addresses
    /// and `localhost`.
    pub hosts: Vec<Host>,
    /// By gzip, where the client takes it. Streams are not: a chunk must not
    /// wait for the next one.
    pub compress: bool,
    /// How each request is written down once it is answered.
    pub log: AccessLog,
    /// What makes spans of requests.
    pub traces: Option<Traces>,
}

/// An origin, as browsers send it, or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Any,
    One(HeaderValue),
}

impl Origin {
    /// Whether this is the origin that a browser sent.
    pub(super) fn is(&self, sent: &HeaderValue) -> bool {
        match self {
            Self::Any => true,
            Self::One(origin) => origin == sent,
        }
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        // Browsers send no slash at the end, so one here would never match.
        let host = text.split_once("://").map(|(_, host)| host);
        host.filter(|host| !host.is_empty() && !host.contains('/'))
            .and_then(|_| HeaderValue::from_str(text).ok())
            .map(Self::One)
            .ok_or_else(|| "an origin is `*`, or a scheme and a host without a path".into())
    }
}

/// Headers that a page may read beside those that it always may.
const EXPOSED: [HeaderName; 4] = [
    header::RETRY_AFTER,
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("x-sluice-seed"),
    HeaderName::from_static("x-sluice-ignored"),
];

impl Web {
    pub(super) fn around(&self, mut router: Router<Arc<Service>>) -> Router<Arc<Service>> {
        if self.compress {
            router = router.layer(CompressionLayer::new());
        }
        if let Some(cors) = self.cors() {
            router = router.layer(cors);
        }
        router
    }

    fn cors(&self) -> Option<CorsLayer> {
        if self.origins.is_empty() {
            return None;
        }
        // Clients send what headers they like, and tokens by one of them.
        let layer = CorsLayer::new()
            .allow_methods(Any)
            .allow_headers(tower_http::cors::AllowHeaders::mirror_request())
            .expose_headers(EXPOSED);
        let one = |origin: &Origin| match origin {
            Origin::Any => None,
            Origin::One(origin) => Some(origin.clone()),
        };
        let origins: Option<Vec<_>> = self.origins.iter().map(one).collect();
        Some(match origins {
            Some(origins) => layer.allow_origin(origins),
            None => layer.allow_origin(Any),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_browser_sends_is_no_origin() {
        assert_eq!("*".parse(), Ok(Origin::Any));
        for text in ["https://a.example", "http://localhost:3000"] {
            assert!(text.parse::<Origin>().is_ok(), "{text}");
        }
        for text in [
            "",
            "a.example",
            "https://",
            "https://a.example/",
            "http://a\nb",
        ] {
            assert!(text.parse::<Origin>().is_err(), "{text}");
        }
    }
}
