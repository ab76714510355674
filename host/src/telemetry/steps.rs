//! Which steps of a request become spans of their own, and what all of them
//! took together.

use std::time::Duration;

use crate::engine::{Phases, StepFigures};

/// The first steps of a request are shown: the prompt's, and the first of its
/// tokens.
const FIRST: u32 = 16;

/// After them those that took so many times what steps of the request took
/// lately.
const SLOW: u32 = 2;

/// The most steps of a request that are shown.
const MOST: u32 = 128;

/// How many steps "lately" are, about.
const LATELY: u32 = 8;

/// The steps of one request until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) n: u32,
    pub(super) n_shown: u32,
    pub(super) longest: Duration,
    pub(super) phases: Phases,
    /// What steps took lately.
    typical: Duration,
}

impl Steps {
    /// Counts a step, and says whether it is shown.
    pub(super) fn count(&mut self, figures: &StepFigures) -> bool {
        let slow = figures.step >= self.typical * SLOW;
        let shown = self.n_shown < MOST && (self.n < FIRST || slow);
        self.typical = match self.n {
            0 => figures.step,
            _ => (self.typical * (LATELY - 1) + figures.step) / LATELY,
        };
        self.n += 1;
        self.n_shown += u32::from(shown);
        self.longest = self.longest.max(figures.step);
        let phases = figures.phases;
        self.phases.forward += phases.forward;
        self.phases.plan += phases.plan;
        self.phases.chain += phases.chain;
        self.phases.sample += phases.sample;
        shown
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn step(ms: u64) -> StepFigures {
        let phases = Phases {
            forward: Duration::from_millis(ms),
            ..Phases::default()
        };
        StepFigures {
            index: 0,
            started: Instant::now(),
            running: 1,
            prompt_rows: 0,
            decode_rows: 1,
            step: Duration::from_millis(ms),
            phases,
            marks: Vec::new(),
        }
    }

    #[test]
    fn the_first_steps_are_shown_and_then_those_that_stall() {
        let mut steps = Steps::default();
        let times = [100; 16]
            .into_iter()
            .chain([10; 60])
            .chain([60, 10, 10, 30]);
        let shown: Vec<_> = times.map(|ms| steps.count(&step(ms))).collect();
        let indices = (0..).zip(shown).filter_map(|(i, shown)| shown.then_some(i));
        // 60 ms after many of 10, and 30 ms after that raised what is usual to 15.
        let expected: Vec<usize> = (0..16).chain([76, 79]).collect();
        assert_eq!(indices.collect::<Vec<_>>(), expected);
        assert_eq!((steps.n, steps.n_shown), (80, 18));
        assert_eq!(steps.longest, Duration::from_millis(100));
        assert_eq!(
            steps.phases.forward,
            Duration::from_millis(1600 + 600 + 110)
        );
    }

    #[test]
    fn however_they_are_there_is_a_limit() {
        let mut steps = Steps::default();
        for i in 0..10_000 {
            steps.count(&step(if i % 40 == 0 { 1_000 } else { 1 }));
        }
        assert_eq!((steps.n, steps.n_shown), (10_000, 128));
    }
}
