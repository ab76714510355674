//! Plans that the batch does not wait for: each chain that may be late plans
//! on a thread of its own, so that a slow one takes no thread of the forward pass.
//! No more compute at once than there are processors.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Chain, Fault, Plan, Presence, TokenId, step::GUEST_STACK};

/// A chain that goes to its thread with the tokens it is to be told of, and when
/// its plan was asked for.
type Asked = (Box<dyn Chain>, Vec<TokenId>, Instant);
/// A chain that comes back with its plan.
type Planned = (Box<dyn Chain>, Result<Plan, Fault>);

/// Who may compute a plan now: first come, first served.
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    free: usize,
    /// Those that wait, each by a number of its own and its request.
    waiting: VecDeque<(u64, Option<RequestKey>)>,
    /// Whose plans compute.
    running: Vec<RequestKey>,
    next: u64,
}

/// Tells requests apart.
pub(super) type RequestKey = usize;

/// Of the request whose choices hold this.
pub(super) fn request_key(presence: &Presence) -> RequestKey {
    Arc::as_ptr(presence).addr()
}

impl Turns {
    /// As many at once as there are processors.
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                free: std::thread::available_parallelism().map_or(1, usize::from),
                waiting: VecDeque::new(),
                running: Vec::new(),
                next: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Waits for a turn, which lasts until it is dropped; none if by then the plan
    /// is not wanted any more. A request has one at a time: its choices share
    /// instances, and would wait for each other with the turns of others in hand.
    fn take(&self, is_wanted: &AtomicBool, request: Option<RequestKey>) -> Option<Turn<'_>> {
        let mut state = self.lock();
        let own = state.next;
        state.next += 1;
        state.waiting.push_back((own, request));
        loop {
            let wanted = is_wanted.load(Relaxed);
            let comes = state.free > 0 && state.first() == Some(own);
            if comes || !wanted {
                state.waiting.retain(|&(other, _)| other != own);
                if !wanted {
                    self.changed.notify_all();
                    return None;
                }
                state.free -= 1;
                state.running.extend(request);
                // The next one may find another free.
                self.changed.notify_all();
                return Some(Turn(self, request));
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Who comes next: the first whose request has no turn yet.
    fn first(&self) -> Option<u64> {
        let is_running = |key: &RequestKey| self.running.contains(key);
        let mut waiting = self.waiting.iter();
        let next = waiting.find(|(_, request)| !request.as_ref().is_some_and(is_running));
        next.map(|&(own, _)| own)
    }
}

struct Turn<'a>(&'a Turns, Option<RequestKey>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.free += 1;
        let own = state.running.iter().position(|key| Some(*key) == self.1);
        if let Some(index) = own {
            state.running.swap_remove(index);
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

/// The thread that one sequence plans on. When this is dropped it ends, after the
/// plan that it computes, and drops the chain it has then.
pub(super) struct Planner {
    asked: Sender<Asked>,
    planned: Receiver<Planned>,
    since: Instant,
    turns: Arc<Turns>,
    is_wanted: Arc<AtomicBool>,
}

impl Planner {
    pub(super) fn start(turns: &Arc<Turns>, presence: Option<&Presence>) -> Result<Self, Fault> {
        let request = presence.map(request_key);
        let (asked, inbox) = mpsc::channel::<Asked>();
        let (outbox, planned) = mpsc::channel();
        let is_wanted = Arc::new(AtomicBool::new(true));
        let (own_turns, own_wanted) = (Arc::clone(turns), Arc::clone(&is_wanted));
        std::thread::Builder::new()
            .name("sluice-plan".into())
            .stack_size(GUEST_STACK)
            .spawn(move || {
                while let Ok((mut chain, accepted, asked)) = inbox.recv() {
                    let Some(turn) = own_turns.take(&own_wanted, request) else {
                        return;
                    };
                    let plan = chain.plan_after(asked.elapsed(), &accepted);
                    drop(turn);
                    if outbox.send((chain, plan)).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| failed(format!("no thread to plan on: {error}")))?;
        Ok(Self {
            asked,
            planned,
            since: Instant::now(),
            turns: Arc::clone(turns),
            is_wanted,
        })
    }

    /// Lets the chain plan.
    pub(super) fn ask(&mut self, chain: Box<dyn Chain>, accepted: Vec<TokenId>) {
        self.since = Instant::now();
        // A thread that is gone shows when it is waited for.
        let _ = self.asked.send((chain, accepted, self.since));
    }

    /// Waits for the plan until `patience` after it was asked for.
    pub(super) fn wait(&self, patience: Duration) -> Result<Option<Planned>, Fault> {
        let left = patience.saturating_sub(self.since.elapsed());
        match self.planned.recv_timeout(left) {
            Ok(planned) => Ok(Some(planned)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(failed(
                "the server failed while running this chain; this is a defect of Sluice".into(),
            )),
        }
    }
}

impl Drop for Planner {
    fn drop(&mut self) {
        // Under the lock, or the thread could begin to wait in between.
        let _state = self.turns.lock();
        self.is_wanted.store(false, Relaxed);
        self.turns.changed.notify_all();
    }
}

fn failed(message: String) -> Fault {
    Fault {
        stage: "chain".into(),
        kind: "internal",
        message,
    }
}
