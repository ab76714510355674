//! The shapes of answers, as OpenAI has them.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::choice::{Drafted, Finish, Update};
use super::field_table::Endpoint;
use super::logprobs::{Entry, Shown};
use super::served_model::ServedModel;
use super::tools::Call;
use super::unix_seconds;
use crate::plugin::{Explanation, StageReport};
use crate::text::Vocabulary;

/// What every body and chunk of one answer shares.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: String,
    vocabulary: Arc<Vocabulary>,
    /// Whether logprobs are shown.
    logprobs: bool,
}

/// A choice that has ended, all of it.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) text: String,
    pub(super) calls: Vec<Call>,
    pub(super) entries: Vec<Entry>,
    pub(super) explained: Vec<Explanation>,
    pub(super) finish: Option<Finish>,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_field_names, reason = "OpenAI's names")]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    /// Those of them that were in the cache.
    pub(super) cached_tokens: usize,
    pub(super) completion_tokens: usize,
    pub(super) drafted: Drafted,
}

impl Usage {
    pub(super) fn of_prompt(prompt_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            ..Self::default()
        }
    }

    /// Counts the tokens of a choice that has ended.
    pub(super) fn count(&mut self, finish: &Finish) {
        self.cached_tokens += finish.cached_tokens;
        self.completion_tokens += finish.completion_tokens;
        self.drafted.accepted += finish.drafted.accepted;
        self.drafted.rejected += finish.drafted.rejected;
    }

    fn body(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self.drafted.accepted,
                "rejected_prediction_tokens": self.drafted.rejected,
            },
        })
    }
}

/// A whole answer. What grows with its tokens is written as it is: as a tree of
/// values it would take many times the memory.
#[derive(Serialize)]
pub(super) struct Whole<'a> {
    #[serde(flatten)]
    head: Value,
    choices: Vec<WholeChoice<'a>>,
    usage: Value,
    sluice: AllDone<'a>,
}

#[derive(Serialize)]
struct WholeChoice<'a> {
    #[serde(flatten)]
    text: Value,
    logprobs: Option<Shown<'a>>,
    #[serde(flatten)]
    end: Value,
}

#[derive(Serialize)]
struct AllDone<'a> {
    choices: Vec<Done<'a>>,
}

/// What the stages of a choice did, and say of each position. It stands beside
/// the choices: those are the same whenever they are asked for again.
#[derive(Serialize)]
struct Done<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    stages: Option<&'a [StageReport]>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    explain: &'a [Explanation],
}

impl<'a> Done<'a> {
    fn new(index: usize, explain: &'a [Explanation], finish: Option<&'a Finish>) -> Self {
        Self {
            index,
            stages: finish.map(|finish| &finish.stages[..]),
            explain,
        }
    }
}

impl Reply {
    /// A new answer of `model`.
    pub(super) fn new(endpoint: Endpoint, model: &ServedModel, logprobs: bool) -> Self {
        let prefix = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        Self {
            endpoint,
            id: format!("{prefix}-{}", Uuid::new_v4().simple()),
            created: unix_seconds(std::time::SystemTime::now()),
            model: model.id.clone(),
            vocabulary: model.tokenizer.vocabulary().clone(),
            logprobs,
        }
    }

    /// A whole answer.
    pub(super) fn body<'a>(&'a self, choices: &'a [Ended], usage: Usage) -> Whole<'a> {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let ended = || choices.iter().enumerate();
        Whole {
            head: self.head(object),
            choices: ended()
                .map(|(index, ended)| self.choice(index, ended))
                .collect(),
            usage: usage.body(),
            sluice: AllDone {
                choices: ended()
                    .map(|(index, ended)| Done::new(index, &ended.explained, ended.finish.as_ref()))
                    .collect(),
            },
        }
    }

    fn choice<'a>(&'a self, index: usize, ended: &'a Ended) -> WholeChoice<'a> {
        let text = &ended.text;
        let mut end = json!({});
        set_end(&mut end, ended.finish.as_ref());
        WholeChoice {
            text: match self.endpoint {
                Endpoint::Chat => json!({"index": index, "message": message(ended)}),
                Endpoint::Completions => json!({"text": text, "index": index}),
            },
            logprobs: self.logprobs(&ended.entries),
            end,
        }
    }

    fn logprobs<'a>(&'a self, entries: &'a [Entry]) -> Option<Shown<'a>> {
        self.logprobs.then(|| Shown {
            entries,
            endpoint: self.endpoint,
            vocabulary: &self.vocabulary,
        })
    }

    /// The first chunk of a choice. Completions have none.
    pub(super) fn opening(&self, index: usize) -> Option<Value> {
        (self.endpoint == Endpoint::Chat).then(|| {
            let delta = json!({"role": "assistant"});
            let choice =
                json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
            self.envelope(self.chunk_object(), &[choice])
        })
    }

    /// The chunks that show an update: its text, then its end.
    pub(super) fn chunks(&self, index: usize, update: &Update) -> Vec<Value> {
        let mut chunks = Vec::new();
        let (mut entries, mut explained) = (&update.entries[..], &update.explained[..]);
        let has_more = !entries.is_empty() && update.end.is_none() && update.calls.is_empty();
        if !update.text.is_empty() || has_more {
            let choice = self.delta(index, Some(&update.text), entries);
            chunks.push(self.chunk(choice, index, explained, None));
            (entries, explained) = (&[], &[]);
        }
        if !update.calls.is_empty() {
            let mut choice = self.delta(index, None, entries);
            choice["delta"]["tool_calls"] = update.calls.iter().map(call_delta).collect();
            chunks.push(self.chunk(choice, index, explained, None));
            (entries, explained) = (&[], &[]);
        }
        if update.end.is_some() {
            let choice = self.delta(index, None, entries);
            chunks.push(self.chunk(choice, index, explained, update.end.as_ref()));
        }
        chunks
    }

    fn chunk(
        &self,
        mut choice: Value,
        index: usize,
        explained: &[Explanation],
        finish: Option<&Finish>,
    ) -> Value {
        set_end(&mut choice, finish);
        let mut chunk = self.envelope(self.chunk_object(), &[choice]);
        if finish.is_some() || !explained.is_empty() {
            chunk["sluice"] = json!({"choices": [Done::new(index, explained, finish)]});
        }
        chunk
    }

    fn delta(&self, index: usize, text: Option<&str>, entries: &[Entry]) -> Value {
        let mut choice = match self.endpoint {
            Endpoint::Chat => json!({
                "index": index,
                "delta": text.map_or(json!({}), |text| json!({"content": text})),
            }),
            Endpoint::Completions => json!({"text": text.unwrap_or_default(), "index": index}),
        };
        let shown = self.logprobs(entries).filter(|_| !entries.is_empty());
        choice["logprobs"] = json!(shown);
        choice
    }

    /// The chunk that carries the usage of the whole request.
    pub(super) fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.envelope(self.chunk_object(), &[]);
        chunk["usage"] = usage.body();
        chunk
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn envelope(&self, object: &str, choices: &[Value]) -> Value {
        let mut envelope = self.head(object);
        envelope["choices"] = json!(choices);
        envelope
    }

    fn head(&self, object: &str) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
        })
    }
}

/// What the assistant says, and what it calls.
fn message(ended: &Ended) -> Value {
    let mut message = json!({"role": "assistant", "content": ended.text, "refusal": null});
    if !ended.calls.is_empty() {
        if ended.text.is_empty() {
            message["content"] = Value::Null;
        }
        message["tool_calls"] = ended.calls.iter().map(call).collect();
    }
    message
}

fn call(call: &Call) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    })
}

/// A whole call in one chunk.
fn call_delta(called: &Call) -> Value {
    let mut delta = call(called);
    delta["index"] = called.index.into();
    delta
}

/// Writes how a choice ended, or that it has not; a stop string that was found
/// is named.
fn set_end(choice: &mut Value, finish: Option<&Finish>) {
    choice["finish_reason"] = finish.map(|finish| finish.reason).into();
    if let Some(string) = finish.and_then(|finish| finish.stop_string.as_deref()) {
        choice["stop_reason"] = string.into();
    }
}
