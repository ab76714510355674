//! Streamed answers: server-sent events, as OpenAI sends them.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;

use super::choice::{Answers, Update};
use super::lifecycle::End;
use super::request::StreamOptions;
use super::wire::{Reply, Usage};

/// Streams the choices as they grow. A failure is sent as an error object and
/// ends the stream without `[DONE]`, and so does the `end` of the service.
pub(super) fn respond(
    answers: Answers,
    end: End,
    reply: Reply,
    options: StreamOptions,
    prompt_tokens: usize,
) -> Response {
    let mut stream = Stream {
        answers,
        end,
        reply,
        options,
        usage: Usage::of_prompt(prompt_tokens),
        queue: VecDeque::new(),
        ended: false,
    };
    stream.open();
    let events = stream::unfold(stream, |mut stream| async move {
        let data = stream.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(data)), stream))
    });
    // Comments while nothing is said keep proxies from closing the connection.
    Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response()
}

struct Stream {
    answers: Answers,
    end: End,
    reply: Reply,
    options: StreamOptions,
    usage: Usage,
    /// Events that are ready to be sent.
    queue: VecDeque<String>,
    ended: bool,
}

impl Stream {
    fn open(&mut self) {
        for index in 0..self.answers.len() {
            if let Some(chunk) = self.reply.opening(index) {
                self.push(chunk);
            }
        }
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.queue.pop_front() {
                return Some(data);
            }
            if self.ended {
                return None;
            }
            let news = tokio::select! {
                news = self.answers.next() => news,
                error = self.end.come() => Err(error),
            };
            match news {
                Ok(Some((index, update))) => self.show(index, &update),
                Ok(None) => self.close(),
                Err(error) => {
                    self.queue.push_back(error.body().to_string());
                    self.ended = true;
                }
            }
        }
    }

    fn show(&mut self, index: usize, update: &Update) {
        if let Some(finish) = &update.end {
            self.usage.count(finish);
        }
        for chunk in self.reply.chunks(index, update) {
            self.push(chunk);
        }
    }

    fn close(&mut self) {
        if self.options.include_usage {
            self.queue
                .push_back(self.reply.usage(self.usage).to_string());
        }
        self.queue.push_back("[DONE]".into());
        self.ended = true;
    }

    /// Queues a chunk that carries no usage, and says so where the client
    /// asked for usage.
    fn push(&mut self, mut chunk: Value) {
        if self.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        self.queue.push_back(chunk.to_string());
    }
}
