//! The choices of a request while they run: events in, text and ends out.

use std::sync::Arc;
use std::task::Poll;

use tokio::sync::mpsc;

use super::errors::{ApiError, Code};
use crate::engine::{Event, FinishReason, Handle, Submission, SubmitError};
use crate::text::{StopStrings, TextStream};

/// One choice: a sequence of the engine and the text it becomes.
pub(super) struct Choice {
    /// Dropping it cancels the sequence. None once the choice has ended.
    events: Option<mpsc::Receiver<Event>>,
    text: TextStream,
    stop: Arc<StopStrings>,
}

/// What is new about a choice.
#[derive(Debug, PartialEq)]
pub(super) struct Update {
    /// To be shown now; may be empty.
    pub(super) text: String,
    /// Set by the last update.
    pub(super) end: Option<Finish>,
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finish {
    /// `stop` or `length`.
    pub(super) reason: &'static str,
    /// The stop string that was found.
    pub(super) stop_string: Option<String>,
    pub(super) completion_tokens: usize,
}

impl Choice {
    pub(super) fn new(
        events: mpsc::Receiver<Event>,
        text: TextStream,
        stop: Arc<StopStrings>,
    ) -> Self {
        Self {
            events: Some(events),
            text,
            stop,
        }
    }

    /// Turns an event into text; `None` is a channel that closed without one.
    fn update(&mut self, event: Option<Event>) -> Result<Update, ApiError> {
        match event {
            Some(Event::Tokens(ids)) => {
                let mut text = String::new();
                for id in ids {
                    let delta = self.text.push(id);
                    text.push_str(&delta.text);
                    if delta.stopped.is_some() {
                        return Ok(self.end(text, "stop"));
                    }
                }
                Ok(Update { text, end: None })
            }
            Some(Event::Finished(FinishReason::Stop)) => Ok(self.end(String::new(), "stop")),
            Some(Event::Finished(FinishReason::Length)) => Ok(self.end(String::new(), "length")),
            Some(Event::Finished(FinishReason::PluginError(fault))) => {
                let code = match fault.kind {
                    "internal" => Code::InternalError,
                    "model_row" => Code::EngineError,
                    _ => Code::PluginError,
                };
                Err(ApiError::new(code, fault.to_string()))
            }
            Some(Event::Finished(FinishReason::EngineError(message))) => {
                Err(ApiError::new(Code::EngineError, message))
            }
            Some(Event::Finished(FinishReason::Cancelled)) | None => Err(ApiError::new(
                Code::Cancelled,
                "the sequence was cancelled: its reader fell too far behind, or the engine ended",
            )),
        }
    }

    /// Ends the choice, showing what was held back unless a stop string ended
    /// it.
    fn end(&mut self, mut text: String, reason: &'static str) -> Update {
        self.events = None;
        text.push_str(&self.text.finish().text);
        let stopped = self.text.stopped();
        let end = Finish {
            reason: if stopped.is_some() { "stop" } else { reason },
            stop_string: stopped
                .and_then(|index| self.stop.get(index))
                .map(str::to_owned),
            completion_tokens: self.text.n_tokens(),
        };
        Update {
            text,
            end: Some(end),
        }
    }
}

/// The choices of a request, running. Dropping it cancels what still runs.
pub(super) struct Answers {
    choices: Vec<Choice>,
    /// Which choice is asked first, so that none starves.
    first: usize,
}

impl Answers {
    /// Hands the sequences to the engine: all of them or none.
    pub(super) fn submit(
        engine: &Handle,
        sequences: Vec<(Submission, Choice)>,
    ) -> Result<Self, ApiError> {
        let mut choices = Vec::with_capacity(sequences.len());
        for (submission, choice) in sequences {
            engine.submit(submission).map_err(|error| match error {
                SubmitError::Busy { .. } => ApiError::new(Code::Overloaded, error.to_string()),
                SubmitError::Stopped => ApiError::new(Code::Stopped, error.to_string()),
                SubmitError::Invalid(_) => ApiError::new(Code::InternalError, error.to_string()),
            })?;
            choices.push(choice);
        }
        Ok(Self { choices, first: 0 })
    }

    /// How many there are, ended ones included.
    pub(super) fn len(&self) -> usize {
        self.choices.len()
    }

    /// Waits for news of any choice and says which. None when all have ended.
    ///
    /// # Errors
    /// The first choice that fails; the request fails with it.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Update)>, ApiError> {
        let count = self.choices.len();
        let ready = std::future::poll_fn(|context| {
            let mut running = false;
            for index in (self.first..count).chain(0..self.first) {
                let Some(events) = &mut self.choices[index].events else {
                    continue;
                };
                running = true;
                if let Poll::Ready(event) = events.poll_recv(context) {
                    return Poll::Ready(Some((index, event)));
                }
            }
            if running {
                Poll::Pending
            } else {
                Poll::Ready(None)
            }
        });
        let Some((index, event)) = ready.await else {
            return Ok(None);
        };
        self.first = (index + 1) % count;
        let update = self.choices[index].update(event)?;
        Ok(Some((index, update)))
    }
}
