//! Whether the service takes requests, lets those that it has end, or ends
//! them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use tokio::sync::watch;

use super::Service;
use super::errors::{ApiError, Code};

/// Routes that answer as long as the process does: they tell others what is
/// going on, and nobody waits for them.
pub(super) const PROBES: [&str; 3] = ["/health", "/ready", "/metrics"];

/// Where the service is between its start and its end, and how many requests
/// are under way. Phases only go forward.
#[derive(Debug)]
pub struct Lifecycle {
    phase: watch::Sender<Phase>,
    in_flight: Arc<watch::Sender<usize>>,
}

#[derive(Clone, Debug)]
enum Phase {
    Serving,
    /// Takes no requests; those under way have until `end`.
    Draining {
        end: Instant,
    },
    /// What is still under way gets this.
    Ending(ApiError),
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Serving),
            in_flight: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl Lifecycle {
    /// Takes no more requests; those under way have `patience` to end.
    pub fn drain(&self, patience: Duration) {
        self.phase.send_if_modified(|phase| {
            let serving = matches!(phase, Phase::Serving);
            if serving {
                let end = Instant::now() + patience;
                *phase = Phase::Draining { end };
            }
            serving
        });
    }

    /// Ends what is under way with this error, and whatever comes. The first
    /// one counts.
    pub fn end(&self, error: ApiError) {
        self.phase.send_if_modified(|phase| {
            let going = !matches!(phase, Phase::Ending(_));
            if going {
                *phase = Phase::Ending(error);
            }
            going
        });
    }

    /// Completes when no request is under way.
    pub async fn idle(&self) {
        let mut in_flight = self.in_flight.subscribe();
        // Cannot fail: the sender is here.
        let _ = in_flight.wait_for(|n| *n == 0).await;
    }

    /// Requests under way, from their heads to the last byte of their answers.
    pub fn in_flight(&self) -> usize {
        *self.in_flight.borrow()
    }

    /// Whether requests are taken.
    ///
    /// # Errors
    /// What a request gets that comes now.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        match &*self.phase.borrow() {
            Phase::Serving => Ok(()),
            Phase::Draining { end } => {
                let left = end.saturating_duration_since(Instant::now());
                let seconds = left.as_secs_f64().ceil().max(1.0) as u32;
                let message = "the server is stopping and takes no more requests";
                Err(ApiError::new(Code::Stopped, message).after(seconds))
            }
            Phase::Ending(_) => {
                let message = "the server is about to end";
                Err(ApiError::new(Code::Stopped, message).after(1))
            }
        }
    }

    /// Counts a request as under way as long as the guard lives.
    fn admit(&self) -> Result<InFlight, ApiError> {
        // Counted before the phase is read: who drains sees it, or it sees that.
        self.in_flight.send_modify(|n| *n += 1);
        let guard = InFlight(self.in_flight.clone());
        self.check().map(|()| guard)
    }

    /// A way to notice the end.
    pub(super) fn watch(&self) -> End {
        End(self.phase.subscribe())
    }
}

/// A request under way.
struct InFlight(Arc<watch::Sender<usize>>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

/// Tells when what is under way has to end.
pub(super) struct End(watch::Receiver<Phase>);

impl End {
    /// Completes when it has to, with what to answer instead.
    pub(super) async fn come(&mut self) -> ApiError {
        loop {
            if let Phase::Ending(error) = &*self.0.borrow_and_update() {
                return error.clone();
            }
            if self.0.changed().await.is_err() {
                return ApiError::new(Code::Stopped, "the server has ended");
            }
        }
    }
}

/// Refuses requests while the server is stopping, and ends those that have no
/// answer yet when it must. One that streams ends its stream itself.
pub(super) async fn admit(
    State(service): State<Arc<Service>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if PROBES.contains(&request.uri().path()) {
        return Ok(next.run(request).await);
    }
    let place = service.lifecycle.admit()?;
    let mut end = service.lifecycle.watch();
    let response = tokio::select! {
        response = next.run(request) => response,
        error = end.come() => error.into_response(),
    };
    Ok(held(response, place))
}

/// A response that keeps something until its last byte is sent, or nobody
/// wants it any more.
pub(super) fn held<T: Send + Unpin + 'static>(response: Response, kept: T) -> Response {
    response.map(|body| Body::new(Held { body, _kept: kept }))
}

struct Held<T> {
    body: Body,
    _kept: T,
}

impl<T: Unpin> http_body::Body for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn stopped() -> ApiError {
        ApiError::new(Code::Stopped, "stopped")
    }

    #[tokio::test]
    async fn what_is_under_way_is_waited_for_and_nothing_else_comes() {
        let life = Lifecycle::default();
        life.idle().await;
        let one = life.admit().unwrap();
        let other = life.admit().unwrap();
        life.drain(Duration::from_secs(7));
        let refused = life.admit().map(drop).unwrap_err();
        assert_eq!(refused.code, Code::Stopped);
        assert_eq!(refused.retry_after, Some(7));
        // A refused request leaves nothing behind.
        assert_eq!(life.in_flight(), 2);
        drop(one);
        let waits = tokio::time::timeout(Duration::from_millis(1), life.idle());
        assert!(waits.await.is_err());
        drop(other);
        life.idle().await;
    }

    #[tokio::test]
    async fn the_end_is_told_to_those_who_wait_and_those_who_come_later() {
        let life = Lifecycle::default();
        let mut early = life.watch();
        let soon = tokio::time::timeout(Duration::from_millis(1), early.come());
        assert!(soon.await.is_err());
        life.end(stopped());
        // The first error counts, and nothing goes back.
        life.end(ApiError::new(Code::EngineError, "later"));
        life.drain(Duration::from_secs(1));
        assert_eq!(early.come().await, stopped());
        assert_eq!(life.watch().come().await, stopped());
        assert_eq!(life.check().unwrap_err().code, Code::Stopped);
    }
}
