//! How long guests may take.

use std::time::{Duration, Instant};

/// A limit of time that several calls may share. Without sharing, a chain of
/// thirty stages that each stay just within their limit would hold up a step
/// thirty times as long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    limit: Duration,
    end: Instant,
}

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self {
            limit,
            end: Instant::now() + limit,
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

    /// The limit it was made with, for messages.
    pub(super) fn limit(self) -> Duration {
        self.limit
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
    }
}
