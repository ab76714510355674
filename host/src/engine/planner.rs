//! Plans that the batch does not wait for: each chain that may be late plans
//! on a thread of its own, so that a slow one takes no worker from the others.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::{Chain, Fault, Plan, TokenId, step::GUEST_STACK};

/// A chain that goes to its thread with the tokens it is to be told of.
type Asked = (Box<dyn Chain>, Vec<TokenId>);
/// A chain that comes back with its plan.
type Planned = (Box<dyn Chain>, Result<Plan, Fault>);

/// The thread that one sequence plans on. It ends after the plan it works on
/// when this is dropped, and drops the chain it has then.
pub(super) struct Planner {
    asked: Sender<Asked>,
    planned: Receiver<Planned>,
    since: Instant,
}

impl Planner {
    pub(super) fn start() -> Result<Self, Fault> {
        let (asked, inbox) = mpsc::channel::<Asked>();
        let (outbox, planned) = mpsc::channel();
        std::thread::Builder::new()
            .name("sluice-plan".into())
            .stack_size(GUEST_STACK)
            .spawn(move || {
                while let Ok((mut chain, accepted)) = inbox.recv() {
                    let plan = chain.plan(&accepted);
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
        })
    }

    /// Lets the chain plan.
    pub(super) fn ask(&mut self, chain: Box<dyn Chain>, accepted: Vec<TokenId>) {
        self.since = Instant::now();
        // A thread that is gone shows when it is waited for.
        let _ = self.asked.send((chain, accepted));
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

fn failed(message: String) -> Fault {
    Fault {
        stage: "chain".into(),
        kind: "internal",
        message,
    }
}
