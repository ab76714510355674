//! Turns at reading requests, which takes a processor for as long as a prompt is
//! long: as many at once as there are processors.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::choice::RequestDeadline;
use super::errors::{ApiError, Code};

/// The process's turns.
pub(super) static READING: LazyLock<Turns> =
    LazyLock::new(|| Turns::new(available_parallelism().map_or(1, NonZero::get)));

/// Requests that may wait to be read where the engine's queue is shorter: most of
/// a burst is read before a place in the batch is needed.
pub(super) const LEAST_WAITING: usize = 256;

pub(super) struct Turns {
    free: Arc<Semaphore>,
    n_waiting: AtomicUsize,
}

impl Turns {
    fn new(n: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(n)),
            n_waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for a turn, which lasts until it is dropped.
    ///
    /// # Errors
    /// When `max_waiting` wait already, or the deadline comes first.
    pub(super) async fn take(
        &self,
        max_waiting: usize,
        deadline: RequestDeadline,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        if let Ok(turn) = self.free.clone().try_acquire_owned() {
            return Ok(turn);
        }
        let Some(_waits) = self.wait(max_waiting) else {
            let message = format!(
                "{max_waiting} requests wait to be read already, as many as this server queues"
            );
            return Err(ApiError::new(Code::Overloaded, message));
        };
        let RequestDeadline { end, limit } = deadline;
        let turn = tokio::time::timeout_at(end.into(), self.free.clone().acquire_owned()).await;
        let turn = turn.map_err(|_| {
            let message = format!("the request waited to be read for {limit:?}, the limit");
            ApiError::new(Code::RequestTimeout, message)
        })?;
        turn.map_err(|error| ApiError::new(Code::InternalError, error.to_string()))
    }

    /// Counts one that waits, until it is dropped.
    fn wait(&self, most: usize) -> Option<Waits<'_>> {
        let more = |n| (n < most).then_some(n + 1);
        self.n_waiting
            .fetch_update(Relaxed, Relaxed, more)
            .ok()
            .map(|_| Waits(&self.n_waiting))
    }
}

struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn within(limit: Duration) -> RequestDeadline {
        RequestDeadline {
            end: Instant::now() + limit,
            limit,
        }
    }

    #[tokio::test]
    async fn so_many_read_so_many_wait_and_more_are_refused() {
        let turns = Arc::new(Turns::new(2));
        let patient = within(Duration::from_mins(1));
        let first = turns.take(1, patient).await.unwrap();
        let _second = turns.take(1, patient).await.unwrap();
        let third = tokio::spawn({
            let turns = turns.clone();
            async move { turns.take(1, patient).await.map(drop) }
        });
        while turns.n_waiting.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        let error = turns.take(1, patient).await.unwrap_err();
        assert_eq!((error.code, error.retry_after), (Code::Overloaded, Some(1)));
        drop(first);
        third.await.unwrap().unwrap();
        assert_eq!(turns.n_waiting.load(Relaxed), 0);
    }

    #[tokio::test]
    async fn waiting_counts_against_the_requests_time() {
        let turns = Turns::new(1);
        let _first = turns.take(1, within(Duration::from_mins(1))).await.unwrap();
        let error = turns.take(1, within(Duration::ZERO)).await.unwrap_err();
        assert_eq!(error.code, Code::RequestTimeout);
        assert_eq!(turns.n_waiting.load(Relaxed), 0);
    }
}
