//! A stream that is read event by event.

use axum::body::Body;
use axum::http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;

use crate::server::Server;

/// The events of a streamed completion. Dropping it hangs up.
pub struct Events {
    body: Body,
    text: String,
}

impl Events {
    /// Sends a request and returns when its head is there.
    pub async fn open(server: &Server, body: &Value) -> Self {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = server
            .respond(Method::POST, "/v1/completions", body.to_string().into())
            .await;
        assert_eq!(response.status(), StatusCode::OK);
        Self {
            body: response.into_body(),
            text: String::new(),
        }
    }

    /// The next chunk; none after the last.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let event: String = self.text.drain(..end + 2).collect();
                let data = event.trim_end().strip_prefix("data: ").unwrap();
                if data == "[DONE]" {
                    return None;
                }
                return Some(serde_json::from_str(data).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            if let Ok(bytes) = frame.into_data() {
                self.text.push_str(std::str::from_utf8(&bytes).unwrap());
            }
        }
    }

    /// The text of the next `n` tokens, or of all that follow.
    pub async fn take(&mut self, n: usize) -> String {
        let mut text = String::new();
        for _ in 0..n {
            let Some(chunk) = self.next().await else {
                break;
            };
            assert!(chunk.get("error").is_none(), "{chunk}");
            text.push_str(chunk["choices"][0]["text"].as_str().unwrap_or(""));
        }
        text
    }
}
