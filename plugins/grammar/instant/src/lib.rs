//! A clock that stands still, in place of the crate of this name: a component
//! has no clock, and `llguidance` times itself all the same.

use std::ops::Sub;
use std::time::Duration;

/// A point in time: there is only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant;

impl Instant {
    /// The one point in time.
    pub fn now() -> Self {
        Self
    }

    /// None passes.
    pub fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    /// None passes.
    pub fn duration_since(&self, _earlier: Self) -> Duration {
        Duration::ZERO
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, _earlier: Self) -> Duration {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::Instant;
    use std::time::Duration;

    #[test]
    fn no_time_passes() {
        let start = Instant::now();
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(Instant::now() - start, Duration::ZERO);
        assert_eq!(Instant::now(), start);
    }
}
