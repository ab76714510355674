//! Notices an engine that is stuck or gone, tells those who wait for it, and
//! has the process end: one that only looks alive is worse than none.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::ending::FLUSH;
use crate::http::Service;
use crate::http::errors::{ApiError, Code};

/// Most time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Starts a thread that looks after the service as long as it is in use. When
/// its engine cannot answer any more, requests under way get an error, and
/// `leave` is called. Neither the executor nor the engine can hold it up.
pub(super) fn start(
    service: &Arc<Service>,
    leave: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let interval = INTERVAL.min(service.limits.step / 4);
    let service = Arc::downgrade(service);
    thread::Builder::new()
        .name("sluice-watchdog".into())
        .spawn(move || {
            if let Some(failure) = watch(&service, interval) {
                tracing::error!("{}; requests under way are ended", failure.message);
                end(&service, &failure.message);
                leave();
            }
        })
        .map(drop)
}

/// What became of the engine; none if the service ended before. It is looked at
/// twice: a process that was held as a whole goes on where it was.
fn watch(service: &Weak<Service>, interval: Duration) -> Option<ApiError> {
    let mut suspected = false;
    loop {
        let failure = service.upgrade()?.failure();
        if failure.is_some() && suspected {
            return failure;
        }
        suspected = failure.is_some();
        thread::sleep(interval);
    }
}

/// Ends what is under way, and gives the errors some time to be sent.
fn end(service: &Weak<Service>, message: &str) {
    let until = Instant::now() + FLUSH;
    while let Some(service) = service.upgrade() {
        let error = ApiError::new(Code::EngineError, message);
        service.lifecycle.end(error);
        if service.lifecycle.in_flight() == 0 || Instant::now() > until {
            break;
        }
        drop(service);
        thread::sleep(Duration::from_millis(10));
    }
}
