//! What is remembered of a plugin while it is loaded: its last messages, its
//! faults, and whether they were too many.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::fault::kind;
use super::memory::MemoryBudget;
use super::pool::Room;
use crate::engine::Fault;

/// Most messages that are kept.
const MAX_MESSAGES: usize = 50;

/// A message that a guest wrote to `log`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogLine {
    pub level: &'static str,
    pub message: String,
}

/// When too many faults make a plugin unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// That many faults within the window; 0: never.
    pub faults: u32,
    pub window: Duration,
}

impl Default for Breaker {
    /// Ten in a minute: a plugin that does its work has none, and each of
    /// them may have kept a batch waiting for its deadline.
    fn default() -> Self {
        Self {
            faults: 10,
            window: Duration::from_mins(1),
        }
    }
}

/// What is remembered of one plugin.
#[derive(Debug)]
pub(super) struct Record {
    messages: Mutex<VecDeque<(SystemTime, LogLine)>>,
    faults: Mutex<Faults>,
    /// What its instances have taken.
    pub(super) memory: Arc<MemoryBudget>,
    /// What they share with others of its name; those of a plugin that came with
    /// the server take what there is.
    pub(super) room: Option<Room>,
    /// What all plugins of its name have done.
    totals: Arc<Totals>,
}

/// What the plugins of a name have done, those of versions that are gone included:
/// it only grows while there is one.
#[derive(Debug, Default)]
pub(super) struct Totals {
    work: [AtomicU64; 3],
    faults: AtomicU64,
}

impl Totals {
    pub(super) fn work(&self) -> Work {
        let [calls, edits, nanoseconds] = self.work.each_ref().map(|total| total.load(Relaxed));
        Work {
            calls,
            edits,
            time: Duration::from_nanos(nanoseconds),
        }
    }

    pub(super) fn n_faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }
}

/// What stages of plugins have done, in choices that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Positions at which they were asked.
    pub calls: u64,
    pub edits: u64,
    /// In their calls and in applying their edits.
    pub time: Duration,
}

#[derive(Debug, Default)]
struct Faults {
    total: u64,
    /// When the last ones happened, oldest first.
    recent: VecDeque<Instant>,
    /// Why the plugin may not be used.
    disabled: Option<String>,
}

impl Record {
    /// Of a plugin that has done nothing yet.
    pub(super) fn new(room: Option<Room>, totals: Arc<Totals>) -> Self {
        Self {
            messages: Mutex::default(),
            faults: Mutex::default(),
            memory: Arc::new(MemoryBudget::new(usize::MAX)),
            room,
            totals,
        }
    }

    /// What the memory of an instance counts for.
    pub(super) fn budgets(&self) -> Vec<Arc<MemoryBudget>> {
        let shared = self.room.iter().map(|room| &room.memory);
        shared.chain([&self.memory]).cloned().collect()
    }

    /// Adds what a stage has done.
    pub(super) fn add(&self, work: Work) {
        let figures = [work.calls, work.edits, work.time.as_nanos() as u64];
        for (total, figure) in self.totals.work.iter().zip(figures) {
            total.fetch_add(figure, Relaxed);
        }
    }

    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    pub(super) fn write(&self, line: LogLine) {
        let mut messages = lock(&self.messages);
        if messages.len() == MAX_MESSAGES {
            messages.pop_front();
        }
        messages.push_back((SystemTime::now(), line));
    }

    /// The last messages, oldest first.
    pub(super) fn messages(&self) -> Vec<(SystemTime, LogLine)> {
        lock(&self.messages).iter().cloned().collect()
    }

    /// Counts a fault. One that a request can bring about by what it asks for,
    /// or by the company it puts a plugin in, is no sign of a broken plugin.
    pub(super) fn fault(&self, fault: &Fault, breaker: Breaker, now: Instant) {
        const INNOCENT: [&str; 6] = [
            kind::ALL_BANNED,
            kind::ERROR,
            kind::OPEN,
            kind::LATE,
            kind::ENDED,
            kind::NO_ROOM,
        ];
        if INNOCENT.contains(&fault.kind) {
            return;
        }
        self.totals.faults.fetch_add(1, Relaxed);
        let mut faults = lock(&self.faults);
        faults.total += 1;
        faults.recent.push_back(now);
        while faults
            .recent
            .front()
            .is_some_and(|&then| now.duration_since(then) > breaker.window)
        {
            faults.recent.pop_front();
        }
        if breaker.faults > 0 && faults.recent.len() >= breaker.faults as usize {
            faults.recent.clear();
            let seconds = breaker.window.as_secs();
            faults.disabled = Some(format!(
                "it failed {} times within {seconds} s, the last time: {}",
                breaker.faults, fault.message
            ));
        }
    }

    pub(super) fn n_faults(&self) -> u64 {
        lock(&self.faults).total
    }

    pub(super) fn disabled(&self) -> Option<String> {
        lock(&self.faults).disabled.clone()
    }

    pub(super) fn enable(&self) {
        let mut faults = lock(&self.faults);
        faults.disabled = None;
        faults.recent.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BREAKER: Breaker = Breaker {
        faults: 3,
        window: Duration::from_secs(10),
    };

    fn fault(kind: &'static str) -> Fault {
        Fault {
            stage: "x".into(),
            kind,
            message: "it broke".into(),
        }
    }

    #[test]
    fn too_many_faults_in_a_window_disable_until_enabled() {
        let record = Record::new(None, Arc::default());
        let start = Instant::now();
        for second in [0, 4, 11] {
            let now = start + Duration::from_secs(second);
            record.fault(&fault(kind::TRAP), BREAKER, now);
            assert_eq!(record.disabled(), None, "{second}");
        }
        record.fault(
            &fault(kind::DEADLINE),
            BREAKER,
            start + Duration::from_secs(13),
        );
        let reason = record.disabled().unwrap_or_default();
        assert!(reason.contains("3 times within 10 s"), "{reason}");
        assert!(reason.contains("it broke"), "{reason}");
        assert_eq!(record.n_faults(), 4);
        record.enable();
        record.fault(&fault(kind::TRAP), BREAKER, start + Duration::from_secs(14));
        assert_eq!(record.disabled(), None);
    }

    #[test]
    fn what_a_request_can_bring_about_counts_for_nothing() {
        let record = Record::new(None, Arc::default());
        let never = Breaker {
            faults: 0,
            ..BREAKER
        };
        for _ in 0..9 {
            record.fault(&fault(kind::ALL_BANNED), BREAKER, Instant::now());
            record.fault(&fault(kind::ERROR), BREAKER, Instant::now());
            record.fault(&fault(kind::LATE), BREAKER, Instant::now());
            record.fault(&fault(kind::ENDED), BREAKER, Instant::now());
            record.fault(&fault(kind::NO_ROOM), BREAKER, Instant::now());
            record.fault(&fault(kind::TRAP), never, Instant::now());
        }
        assert_eq!((record.disabled(), record.n_faults()), (None, 9));
    }

    #[test]
    fn the_last_messages_are_kept() {
        let record = Record::new(None, Arc::default());
        for i in 0..60 {
            record.write(LogLine {
                level: "info",
                message: i.to_string(),
            });
        }
        let messages = record.messages();
        assert_eq!(messages.len(), 50);
        assert_eq!(messages[0].1.message, "10");
    }
}
