//! When the plans of a step are made.

use std::time::Duration;

/// How much later a forward pass may begin because plans are made before it:
/// about what it costs to wake the workers up.
const HAND_OFF: Duration = Duration::from_micros(200);

/// Whether plans are made before the forward pass, on its threads, rather than
/// beside it, if each takes as long as the one before; some have had none.
///
/// Lost is the time of the longest thread, less what the plans would take from
/// a pass that runs beside them on the same processors.
pub(super) fn go_first(
    times: impl IntoIterator<Item = Option<Duration>>,
    n_threads: usize,
    pass_takes_processors: bool,
) -> bool {
    let (mut longest, mut sum) = (Duration::ZERO, Duration::ZERO);
    for time in times {
        let Some(time) = time else {
            return false;
        };
        longest = longest.max(time);
        sum += time;
    }
    let even = sum / u32::try_from(n_threads).unwrap_or(u32::MAX).max(1);
    let taken = if pass_takes_processors {
        even
    } else {
        Duration::ZERO
    };
    longest.max(even).saturating_sub(taken) < HAND_OFF
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_two_threads(times: &[u64], pass_takes_processors: bool) -> bool {
        let times = times.iter().map(|&us| Some(Duration::from_micros(us)));
        go_first(times, 2, pass_takes_processors)
    }

    #[test]
    fn beside_another_device_only_plans_go_first_that_are_no_longer_than_their_hand_off() {
        assert!(on_two_threads(&[], false));
        assert!(on_two_threads(&[199], false));
        assert!(!on_two_threads(&[200], false));
        // 8 · 40 / 2 = 160; 8 · 50 / 2 = 200.
        assert!(on_two_threads(&[40; 8], false));
        assert!(!on_two_threads(&[50; 8], false));
    }

    #[test]
    fn on_the_processors_of_the_pass_plans_go_first_that_leave_no_thread_idle_for_long() {
        assert!(on_two_threads(&[2_000; 8], true));
        // One thread of two is idle for 399 µs, of which the pass could have
        // had half.
        assert!(on_two_threads(&[399], true));
        assert!(!on_two_threads(&[400], true));
        assert!(!on_two_threads(&[2_000, 10, 10], true));
    }

    #[test]
    fn a_plan_without_a_time_goes_beside_the_pass() {
        assert!(!go_first([Some(Duration::ZERO), None], 2, true));
    }
}
