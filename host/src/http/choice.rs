//! The choices of a request while they run: events in, text and ends out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::errors::{ApiError, Code};
use super::log::Notes;
use super::logprobs::{Entry, Offsets, prompt_bytes};
use super::tools::Call;
use crate::engine::{Event, FinishReason, Handle, Submission, SubmitError, Token};
use crate::plugin::{Explanation, Report, StageReport};
use crate::telemetry::{Metrics, Tokens};
use crate::text::{Parsed, StopStrings, TextStream, ToolStream, Vocabulary};

/// How a choice is shown.
pub(super) struct Showing {
    pub(super) vocabulary: Arc<Vocabulary>,
    pub(super) stop: Arc<StopStrings>,
    pub(super) min_tokens: usize,
    pub(super) logprobs: bool,
    /// Whether the end id has a logprobs entry too, as in completions.
    pub(super) end_entry: bool,
    pub(super) echo: Option<Echo>,
    /// Whether it is the first choice of its prompt: the others have the
    /// prompt from it.
    pub(super) is_first: bool,
    /// Tells calls from text, where there are tools.
    pub(super) tools: Option<ToolStream>,
}

/// The prompt, shown before the completion.
#[derive(Clone, Debug)]
pub(super) struct Echo {
    pub(super) text: String,
    /// Tokens whose logprobs come before the text is shown.
    pub(super) n_tokens: usize,
    /// Whether the first token is no part of the text: the tokenizer put it
    /// there.
    pub(super) starts_hidden: bool,
    /// Tokens that begin with a space that the text has not, by place: the
    /// tokenizer put it there.
    pub(super) spaces_hidden: Vec<usize>,
}

impl Echo {
    /// What the text shows of a token with these bytes.
    pub(super) fn shown<'a>(&self, index: usize, bytes: &'a [u8]) -> &'a [u8] {
        if index == 0 && self.starts_hidden {
            &[]
        } else if self.spaces_hidden.binary_search(&index).is_ok() {
            bytes.strip_prefix(b" ").unwrap_or(bytes)
        } else {
            bytes
        }
    }
}

/// One choice: a sequence of the engine and the text it becomes.
pub(super) struct Choice {
    /// Dropping it cancels the sequence. None once the choice has ended.
    events: Option<mpsc::Receiver<Event>>,
    report: Arc<Report>,
    text: TextStream,
    showing: Showing,
    offsets: Offsets,
    /// Tokens of which it is not known yet whether they are shown.
    unshown: VecDeque<Token>,
    /// Entries that wait for the text they belong to.
    entries: Vec<Entry>,
    end_token: Option<Token>,
    cached_tokens: usize,
    drafted: Drafted,
}

/// Tokens that were drafted from the text, by whether they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drafted {
    pub(super) accepted: usize,
    pub(super) rejected: usize,
}

/// What is new about a choice.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Update {
    /// To be shown now; may be empty.
    pub(super) text: String,
    pub(super) calls: Vec<Call>,
    /// Logprobs of the tokens that make up the text, where they are wanted.
    pub(super) entries: Vec<Entry>,
    pub(super) explained: Vec<Explanation>,
    /// Set by the last update.
    pub(super) end: Option<Finish>,
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finish {
    /// `stop`, `length` or `tool_calls`.
    pub(super) reason: &'static str,
    /// The stop string that was found.
    pub(super) stop_string: Option<String>,
    /// Tokens of its prompt that the cache had from earlier requests.
    pub(super) cached_tokens: usize,
    pub(super) completion_tokens: usize,
    pub(super) drafted: Drafted,
    /// The stages that ran, and what they did.
    pub(super) stages: Vec<StageReport>,
}

impl Choice {
    pub(super) fn new(
        events: mpsc::Receiver<Event>,
        report: Arc<Report>,
        showing: Showing,
    ) -> Self {
        let text = TextStream::new(
            showing.vocabulary.clone(),
            showing.stop.clone(),
            showing.min_tokens,
        );
        Self {
            events: Some(events),
            report,
            text,
            showing,
            offsets: Offsets::default(),
            unshown: VecDeque::new(),
            entries: Vec::new(),
            end_token: None,
            cached_tokens: 0,
            drafted: Drafted::default(),
        }
    }

    /// The stages that choose its tokens, in order: `name@version`.
    pub(super) fn stages(&self) -> Vec<String> {
        let name = |stage: StageReport| format!("{}@{}", stage.plugin, stage.version);
        self.report.stages().into_iter().map(name).collect()
    }

    /// The prompt, once it is complete and as long as it was not shown.
    fn take_echo(&mut self) -> Option<Update> {
        let shown = &mut self.showing;
        let echo = shown
            .echo
            .take_if(|echo| !shown.logprobs || self.entries.len() == echo.n_tokens)?;
        Some(Update {
            text: echo.text,
            entries: std::mem::take(&mut self.entries),
            ..Update::default()
        })
    }

    /// Turns an event into text; `None` is a channel that closed without one.
    fn update(&mut self, event: Option<Event>) -> Result<Update, ApiError> {
        match event {
            Some(Event::Cached(n_tokens)) => {
                if self.showing.is_first {
                    self.cached_tokens = n_tokens;
                }
                Ok(Update::default())
            }
            Some(Event::Prompt(tokens)) => {
                let vocabulary = self.showing.vocabulary.clone();
                for token in tokens {
                    let bytes = prompt_bytes(token.id, &vocabulary);
                    let bytes = match &self.showing.echo {
                        Some(echo) => echo.shown(self.entries.len(), bytes),
                        None => bytes,
                    };
                    self.enter(token, bytes);
                }
                Ok(self.take_echo().unwrap_or_default())
            }
            Some(Event::Tokens(tokens)) => {
                let mut update = Update::default();
                for token in tokens {
                    if self.push(token, &mut update) {
                        return Ok(self.end(update, "stop"));
                    }
                }
                Ok(self.shown(update))
            }
            Some(Event::Drafted { accepted, rejected }) => {
                self.drafted = Drafted { accepted, rejected };
                Ok(Update::default())
            }
            Some(Event::End(token)) => {
                self.end_token = Some(token);
                Ok(Update::default())
            }
            Some(Event::Finished(FinishReason::Stop)) => Ok(self.end(Update::default(), "stop")),
            Some(Event::Finished(FinishReason::Length)) => {
                Ok(self.end(Update::default(), "length"))
            }
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

    /// Takes a generated token; true if it completes a stop string or the one
    /// call that may be: what comes after it does not count.
    fn push(&mut self, token: Token, update: &mut Update) -> bool {
        let delta = self.text.push(token.id);
        self.parse(&delta.text, false, update);
        if self.showing.logprobs {
            self.unshown.push_back(token);
            self.enter_shown(delta.n_tokens);
        }
        delta.stopped.is_some() || self.showing.tools.as_ref().is_some_and(ToolStream::is_done)
    }

    /// Makes entries of the next `n` tokens, which are shown.
    fn enter_shown(&mut self, n: usize) {
        let vocabulary = self.showing.vocabulary.clone();
        let shown: Vec<_> = self.unshown.drain(..n.min(self.unshown.len())).collect();
        for token in shown {
            let bytes = vocabulary.token_bytes(token.id);
            self.enter(token, bytes);
        }
    }

    fn enter(&mut self, token: Token, bytes: &[u8]) {
        self.entries.push(Entry {
            id: token.id,
            logprobs: token.logprobs,
            offset: self.offsets.next(bytes),
        });
    }

    /// The update, with what belongs to its tokens. That waits for text to come
    /// with.
    fn shown(&mut self, update: Update) -> Update {
        if update.text.is_empty() && update.calls.is_empty() {
            return update;
        }
        Update {
            entries: std::mem::take(&mut self.entries),
            explained: self.report.take_explanations(),
            ..update
        }
    }

    /// Adds what is text and what calls of further text, which may be the last.
    fn parse(&mut self, text: &str, last: bool, update: &mut Update) {
        let Some(tools) = &mut self.showing.tools else {
            update.text.push_str(text);
            return;
        };
        let first = tools.n_calls();
        let mut parsed = tools.push(text);
        if last {
            let Parsed { text, calls } = tools.finish();
            parsed.text.push_str(&text);
            parsed.calls.extend(calls);
        }
        update.text.push_str(&parsed.text);
        let calls = parsed.calls.into_iter().zip(first..);
        update
            .calls
            .extend(calls.map(|(call, index)| Call::new(index, call)));
    }

    /// Ends the choice with this update, showing what was held back unless a
    /// stop string or the one call that may be ended it.
    fn end(&mut self, mut update: Update, reason: &'static str) -> Update {
        self.events = None;
        let delta = self.text.finish();
        self.enter_shown(delta.n_tokens);
        let stopped = self.text.stopped();
        let end_token = self.end_token.take();
        if let Some(token) = end_token.filter(|_| self.showing.end_entry && stopped.is_none()) {
            self.enter(token, &[]);
        }
        self.parse(&delta.text, true, &mut update);
        let called = self.showing.tools.as_ref();
        let called = called.is_some_and(|tools| tools.n_calls() > 0);
        let end = Finish {
            reason: match reason {
                "length" if stopped.is_none() => "length",
                _ if called => "tool_calls",
                _ => "stop",
            },
            stop_string: stopped
                .and_then(|index| self.showing.stop.get(index))
                .map(str::to_owned),
            cached_tokens: self.cached_tokens,
            completion_tokens: self.text.n_tokens(),
            drafted: self.drafted,
            stages: self.report.stages(),
        };
        Update {
            entries: std::mem::take(&mut self.entries),
            explained: self.report.take_explanations(),
            end: Some(end),
            ..update
        }
    }
}

/// The choices of a request, running. Dropping it cancels what still runs.
pub(super) struct Answers {
    choices: Vec<Choice>,
    /// Which choice is asked first, so that none starves.
    first: usize,
    deadline: RequestDeadline,
    metrics: Arc<Metrics>,
    notes: Option<Notes>,
    /// When each choice last had a token.
    last_tokens: Vec<Option<Instant>>,
}

/// When a request has to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestDeadline {
    pub(super) end: Instant,
    /// The limit it came from.
    pub(super) limit: Duration,
}

impl RequestDeadline {
    fn exceeded(self) -> ApiError {
        let message = format!("the request took longer than {:?}, the limit", self.limit);
        ApiError::new(Code::RequestTimeout, message)
    }

    /// This error, or that the deadline has passed, if it has: then that is why.
    pub(super) fn or_exceeded(self, error: ApiError) -> ApiError {
        if Instant::now() < self.end {
            error
        } else {
            self.exceeded()
        }
    }
}

impl Answers {
    /// Hands the sequences to the engine: all of them or none.
    pub(super) fn submit(
        engine: &Handle,
        sequences: Vec<(Submission, Choice)>,
        deadline: RequestDeadline,
        metrics: Arc<Metrics>,
        notes: Option<Notes>,
    ) -> Result<Self, ApiError> {
        let mark = notes.as_ref().and_then(|notes| notes.mark);
        let mut choices = Vec::with_capacity(sequences.len());
        for (submission, choice) in sequences {
            let submitted = match mark {
                Some(mark) => engine.submit_marked(submission, mark),
                None => engine.submit(submission),
            };
            submitted.map_err(|error| match error {
                SubmitError::Busy { .. } => ApiError::new(Code::Overloaded, error.to_string()),
                SubmitError::Stopped => ApiError::new(Code::Stopped, error.to_string()),
                SubmitError::Invalid(_) => ApiError::new(Code::InternalError, error.to_string()),
            })?;
            choices.push(choice);
        }
        Ok(Self {
            last_tokens: vec![None; choices.len()],
            choices,
            first: 0,
            deadline,
            metrics,
            notes,
        })
    }

    /// How many there are, ended ones included.
    pub(super) fn len(&self) -> usize {
        self.choices.len()
    }

    /// Waits for news of any choice and says which. None when all have ended.
    ///
    /// # Errors
    /// The first choice that fails; the request fails with it, as it does at
    /// its deadline.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Update)>, ApiError> {
        let news = self.news().await;
        if let Err(error) = &news {
            self.give_up(error.code.name());
        }
        news
    }

    async fn news(&mut self) -> Result<Option<(usize, Update)>, ApiError> {
        let echoes = self.choices.iter_mut().map(Choice::take_echo);
        if let Some((index, echo)) = echoes.enumerate().find_map(|(i, echo)| Some((i, echo?))) {
            return Ok(Some((index, echo)));
        }
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
        let ready = tokio::time::timeout_at(self.deadline.end.into(), ready).await;
        let ready = ready.map_err(|_| self.deadline.exceeded())?;
        let Some((index, event)) = ready else {
            return Ok(None);
        };
        self.first = (index + 1) % count;
        if let Some(Event::Tokens(tokens)) = &event {
            self.time(index, tokens.len());
        }
        let update = self.choices[index].update(event)?;
        if let Some(finish) = &update.end {
            self.count(finish);
            self.choices[index].report.settle();
        }
        Ok(Some((index, update)))
    }

    /// Times tokens of a choice as they are handed on.
    fn time(&mut self, index: usize, n_tokens: usize) {
        let now = Instant::now();
        if self.last_tokens.iter().all(Option::is_none) {
            let left = self.deadline.end.saturating_duration_since(now);
            let after = self.deadline.limit.saturating_sub(left);
            self.metrics.first_token(after);
            if let Some(notes) = &self.notes {
                notes.first_token(after);
            }
        }
        if let Some(before) = self.last_tokens[index].replace(now) {
            self.metrics.next_tokens(n_tokens, now - before);
        }
    }

    fn count(&self, finish: &Finish) {
        let tokens = Tokens {
            cached: finish.cached_tokens,
            completion: finish.completion_tokens,
        };
        self.metrics.finished(finish.reason, tokens);
        if let Some(notes) = &self.notes {
            notes.ended(finish.reason, tokens.cached, tokens.completion);
        }
    }

    /// Ends the choices that run, for this reason.
    fn give_up(&mut self, reason: &'static str) {
        for choice in &mut self.choices {
            if choice.events.take().is_some() {
                self.metrics.ended(reason);
                choice.report.settle();
                if let Some(notes) = &self.notes {
                    notes.ended(reason, choice.cached_tokens, choice.text.n_tokens());
                }
            }
        }
    }
}

impl Drop for Answers {
    /// Who reads no further has hung up.
    fn drop(&mut self) {
        self.give_up(Code::Cancelled.name());
    }
}
