//! Counting how large values are, without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many values there were up to each bound, and their sum: two additions
/// for a value, from any thread.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more than there are bounds: the last is for what lies above.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// What a [`Histogram`] has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// How many values lie up to each bound and above the one before, then how
    /// many above the last.
    pub counts: Vec<u64>,
    pub sum: u64,
}

impl Histogram {
    /// `bounds` are ascending; a value that equals one belongs to it.
    pub fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    pub fn bounds(&self) -> &'static [u64] {
        self.bounds
    }

    pub fn observe(&self, value: u64) {
        self.observe_all(value, 1);
    }

    /// The same value, `n` times.
    pub fn observe_all(&self, value: u64, n: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(n, Relaxed);
        }
        self.sum.fetch_add(value.saturating_mul(n), Relaxed);
    }

    /// What was counted; values that come meanwhile may be missing in part.
    pub fn distribution(&self) -> Distribution {
        Distribution {
            counts: self
                .counts
                .iter()
                .map(|count| count.load(Relaxed))
                .collect(),
            sum: self.sum.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lies_in_the_bucket_of_the_first_bound_that_it_does_not_exceed() {
        let histogram = Histogram::new(&[1, 10, 100]);
        for value in [0, 1, 2, 10, 11, 100, 101] {
            histogram.observe(value);
        }
        histogram.observe_all(50, 3);
        let expected = Distribution {
            counts: vec![2, 2, 5, 1],
            sum: 225 + 150,
        };
        assert_eq!(histogram.distribution(), expected);
    }
}
