//! The shapes of answers, as OpenAI has them.

use serde_json::{Value, json};
use uuid::Uuid;

use super::choice::Finish;
use super::field_table::Endpoint;
use super::unix_seconds;

/// What every body and chunk of one answer shares.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: usize,
}

impl Usage {
    fn body(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        })
    }
}

impl Reply {
    /// A new answer of `model`.
    pub(super) fn new(endpoint: Endpoint, model: &str) -> Self {
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        Self {
            endpoint,
            id: format!("{prefix}-{}", Uuid::new_v4().simple()),
            created: unix_seconds(std::time::SystemTime::now()),
            model: model.to_owned(),
        }
    }

    /// A whole answer.
    pub(super) fn body(&self, choices: &[(String, Finish)], usage: Usage) -> Value {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let choices = choices
            .iter()
            .enumerate()
            .map(|(index, (text, finish))| self.choice(index, text, finish))
            .collect::<Vec<_>>();
        let mut body = self.envelope(object, &choices);
        body["usage"] = usage.body();
        body
    }

    fn choice(&self, index: usize, text: &str, finish: &Finish) -> Value {
        let mut choice = match self.endpoint {
            Endpoint::Chat => json!({
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": null},
                "logprobs": null,
            }),
            Endpoint::Completions => json!({"text": text, "index": index, "logprobs": null}),
        };
        end(&mut choice, finish);
        choice
    }

    /// The first chunk of a choice. Completions have none.
    pub(super) fn opening(&self, index: usize) -> Option<Value> {
        (self.endpoint == Endpoint::Chat)
            .then(|| self.chunk(json!({"index": index, "delta": {"role": "assistant"}})))
    }

    /// A chunk with more text.
    pub(super) fn text(&self, index: usize, text: &str) -> Value {
        self.chunk(match self.endpoint {
            Endpoint::Chat => json!({"index": index, "delta": {"content": text}}),
            Endpoint::Completions => json!({"text": text, "index": index}),
        })
    }

    /// The last chunk of a choice.
    pub(super) fn finish(&self, index: usize, finish: &Finish) -> Value {
        let mut choice = match self.endpoint {
            Endpoint::Chat => json!({"index": index, "delta": {}, "logprobs": null}),
            Endpoint::Completions => json!({"text": "", "index": index, "logprobs": null}),
        };
        end(&mut choice, finish);
        self.envelope(self.chunk_object(), &[choice])
    }

    /// The chunk that carries the usage of the whole request.
    pub(super) fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.envelope(self.chunk_object(), &[]);
        chunk["usage"] = usage.body();
        chunk
    }

    fn chunk(&self, mut choice: Value) -> Value {
        choice["logprobs"] = Value::Null;
        choice["finish_reason"] = Value::Null;
        self.envelope(self.chunk_object(), &[choice])
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn envelope(&self, object: &str, choices: &[Value]) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// Writes how a choice ended; a stop string that was found is named.
fn end(choice: &mut Value, finish: &Finish) {
    choice["finish_reason"] = finish.reason.into();
    if let Some(string) = &finish.stop_string {
        choice["stop_reason"] = string.as_str().into();
    }
}
