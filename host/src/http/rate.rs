//! How often one caller may upload, and how much it may have under way.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use governor::clock::{Clock, DefaultClock};
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::Caller;
use super::errors::{ApiError, Code};

/// Uploads of each caller, by the name of the token; those without one share a
/// rate.
pub struct UploadRate {
    /// None: as often as they like.
    limiter: Option<RateLimiter<Option<String>, HashMapStateStore<Option<String>>, DefaultClock>>,
    per_minute: u32,
    places: Places,
}

/// Uploads of one caller that are read, or wait for the compiler, at once: each
/// holds its bytes. The others wait unread, and cost a connection each.
const UPLOADS_OF_ONE: u32 = 8;

impl UploadRate {
    /// At most so many uploads a minute, which may come at once; 0: no limit.
    pub fn per_minute(per_minute: u32) -> Self {
        let limiter =
            NonZeroU32::new(per_minute).map(|n| RateLimiter::hashmap(Quota::per_minute(n)));
        Self {
            limiter,
            per_minute,
            places: Places::of_each(UPLOADS_OF_ONE),
        }
    }

    /// Waits for a place among the caller's own uploads, however slow others are.
    pub(super) async fn place(&self, caller: &Caller) -> Result<OwnedSemaphorePermit, ApiError> {
        let place = self.places.of(caller).acquire_owned().await;
        place.map_err(|error| ApiError::new(Code::InternalError, error.to_string()))
    }

    /// Counts an upload, or says when to come again.
    pub(super) fn check(&self, Caller(name): &Caller) -> Result<(), ApiError> {
        let Some(limiter) = &self.limiter else {
            return Ok(());
        };
        limiter.check_key(name).map_err(|later| {
            let seconds = later.wait_time_from(DefaultClock::default().now());
            let seconds = seconds.as_secs_f64().ceil() as u32;
            let message = format!(
                "more than {} uploads in a minute, the limit; try again in {seconds} s",
                self.per_minute
            );
            ApiError::new(Code::RateLimited, message).after(seconds)
        })
    }
}

/// Generation requests of each caller that are under way, by the name of the
/// token; those without one count together.
pub struct Concurrency {
    /// None: as many as they like.
    places: Option<Places>,
}

impl Concurrency {
    /// At most so many requests of one caller at once; 0: no limit.
    pub fn per_caller(most: u32) -> Self {
        Self {
            places: (most > 0).then(|| Places::of_each(most)),
        }
    }

    /// A place for a request, which it has until the guard is dropped.
    pub(super) fn enter(&self, caller: &Caller) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let Some(places) = &self.places else {
            return Ok(None);
        };
        let place = places.of(caller).try_acquire_owned();
        place.map(Some).map_err(|_| {
            let message = format!(
                "{} requests of this caller are under way, the limit",
                places.most
            );
            ApiError::new(Code::RateLimited, message).after(1)
        })
    }
}

/// Places of each caller, by the name of the token; those without one share
/// theirs.
struct Places {
    most: u32,
    /// As many callers as there are tokens.
    callers: Mutex<HashMap<Option<String>, Arc<Semaphore>>>,
}

impl Places {
    fn of_each(most: u32) -> Self {
        Self {
            most,
            callers: Mutex::default(),
        }
    }

    fn of(&self, Caller(name): &Caller) -> Arc<Semaphore> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let places = || Arc::new(Semaphore::new(self.most as usize));
        callers.entry(name.clone()).or_insert_with(places).clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_places_of_its_own() {
        let places = Concurrency::per_caller(2);
        for caller in [&Caller(Some("ann".into())), &Caller(None)] {
            let first = places.enter(caller).unwrap();
            let _second = places.enter(caller).unwrap();
            let error = places.enter(caller).unwrap_err();
            assert_eq!(
                (error.code, error.retry_after),
                (Code::RateLimited, Some(1))
            );
            drop(first);
            assert!(places.enter(caller).unwrap().is_some());
        }
        let open = Concurrency::per_caller(0);
        assert!((0..1000).all(|_| open.enter(&Caller(None)).unwrap().is_none()));
    }

    #[test]
    fn each_caller_has_a_rate_of_its_own() {
        let rate = UploadRate::per_minute(2);
        let ann = Caller(Some("ann".into()));
        for caller in [&ann, &Caller(None)] {
            rate.check(caller).unwrap();
            rate.check(caller).unwrap();
            let error = rate.check(caller).unwrap_err();
            assert_eq!(error.code, Code::RateLimited);
            // Two a minute: the next comes within half of one.
            assert!((1..=30).contains(&error.retry_after.unwrap()), "{error}");
        }
    }

    #[test]
    fn zero_is_no_limit() {
        let rate = UploadRate::per_minute(0);
        for _ in 0..1000 {
            rate.check(&Caller(None)).unwrap();
        }
    }
}
