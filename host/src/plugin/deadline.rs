//! How long guests may take.

use std::time::{Duration, Instant};

/// A limit of time that several calls may share. Without sharing, a chain of
/// thirty stages that each stay just within their limit would hold up a step
/// thirty times as long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    limit: Duration,
    end: Instant,
    /// By how much it came later because somebody else had the instance.
    waited: Duration,
}

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self {
            limit,
            end: Instant::now() + limit,
            waited: Duration::ZERO,
        }
    }

    /// The whole limit, after so long a wait for somebody else.
    pub(super) fn behind(waited: Duration, limit: Duration) -> Self {
        Self {
            waited,
            ..Self::after(limit)
        }
    }

    /// Of the limit, this much has gone by already.
    pub(super) fn with_gone(gone: Duration, limit: Duration) -> Self {
        Self {
            limit,
            ..Self::after(limit.saturating_sub(gone))
        }
    }

    /// This deadline, or the other if that comes first.
    pub(super) fn or_sooner(self, other: Self) -> Self {
        if other.end < self.end { other } else { self }
    }

    /// This deadline, later by what the host took for itself.
    pub(super) fn later_by(self, time: Duration) -> Self {
        Self {
            end: self.end + time,
            ..self
        }
    }

    /// This deadline, or that moment if it comes first.
    pub(super) fn no_later_than(self, end: Instant) -> Self {
        Self {
            end: self.end.min(end),
            ..self
        }
    }

    /// This deadline, later by what somebody else kept the instance for.
    pub(super) fn after_waiting(self, time: Duration) -> Self {
        Self {
            waited: self.waited + time,
            ..self.later_by(time)
        }
    }

    /// Whether more was waited than the limit itself.
    pub(super) fn has_waited_too_long(self) -> bool {
        self.waited > self.limit
    }

    /// The limit it was made with, for messages.
    pub(super) fn limit(self) -> Duration {
        self.limit
    }

    pub(super) fn end(self) -> Instant {
        self.end
    }

    /// What is left of it.
    pub(super) fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sooner_of_two_counts() {
        let long = Deadline::after(Duration::from_mins(1));
        let short = Deadline::after(Duration::ZERO);
        assert_eq!(long.or_sooner(short).limit(), Duration::ZERO);
        assert_eq!(short.or_sooner(long).left(), Duration::ZERO);
        assert!(long.left() > Duration::from_secs(50));
        let later = long.later_by(Duration::from_mins(1));
        assert!(later.left() > Duration::from_secs(110));
        assert_eq!(later.limit(), Duration::from_mins(1));
        let until = long.no_later_than(Instant::now());
        assert_eq!(until.left(), Duration::ZERO);
        assert_eq!(until.limit(), Duration::from_mins(1));
    }

    #[test]
    fn waiting_takes_nothing_of_a_limit_but_has_one_itself() {
        let minute = Duration::from_mins(1);
        let spent = Deadline::with_gone(minute, minute);
        assert_eq!(spent.left(), Duration::ZERO);
        assert_eq!(spent.limit(), minute);
        let waited = spent.after_waiting(minute);
        assert!(waited.left() > Duration::from_secs(50));
        for waited in [waited, Deadline::behind(minute, minute)] {
            assert!(!waited.has_waited_too_long());
            let longer = waited.after_waiting(Duration::from_millis(1));
            assert!(longer.has_waited_too_long());
        }
        let behind = Deadline::behind(minute, minute);
        assert!(behind.left() <= minute);
    }
}
