//! Plans that outlast the patience of the batch.

use super::*;
use std::{
    sync::{
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc as channel,
    },
    time::Duration,
};

/// A chain that a step waits for no longer than this.
pub(super) struct Late(pub(super) Duration, pub(super) Box<dyn Chain>);

impl Chain for Late {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.1.plan(accepted)
    }
    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        self.1.finish(row)
    }
    fn patience(&self) -> Option<Duration> {
        Some(self.0)
    }
}

/// Where a plan is held up, and let go.
struct Gate {
    reached: channel::Receiver<()>,
    open: channel::Sender<()>,
}

/// A late chain whose plan of the `n`th position does not end before its gate
/// is opened.
fn held_up(n: usize) -> (Gate, Box<dyn Chain>) {
    let (reach, reached) = channel::channel();
    let (open, opened) = channel::channel();
    let plan = move |accepted: &[TokenId]| {
        if accepted.len() == n {
            reach.send(()).unwrap();
            opened.recv().unwrap();
        }
        Ok(Plan::Sample)
    };
    let chain = Late(Duration::ZERO, Box::new(ScriptedChain::new(plan)));
    (Gate { reached, open }, Box::new(chain))
}

#[test]
fn the_batch_goes_on_without_a_late_plan_which_changes_no_token() {
    for n in [0, 3] {
        let (handle, _) = start(EngineConfig::default());
        let (gate, chain) = held_up(n);
        let late = submit(&handle, &[2, 3], 9, chain);
        gate.reached.recv().unwrap();
        // Its neighbours come to their ends although it cannot.
        for i in 4..7 {
            let (tokens, reason) = read(submit(&handle, &[i], 40, greedy()));
            assert_eq!(tokens, expected(&[i], 40));
            assert_eq!(reason, FinishReason::Length);
        }
        gate.open.send(()).unwrap();
        assert_eq!(read(late), (expected(&[2, 3], 9), FinishReason::Length));
    }
}

#[test]
fn a_late_sequence_ends_also_when_nobody_else_is_there() {
    let (handle, thread) = start(EngineConfig::default());
    let plan = |accepted: &[TokenId]| {
        std::thread::sleep(Duration::from_millis(3));
        Ok(match accepted.len() {
            2 => Plan::Force(vec![7, 8]),
            6 => Plan::Stop,
            _ => Plan::Sample,
        })
    };
    let chain = Late(Duration::ZERO, Box::new(ScriptedChain::new(plan)));
    let late = submit(&handle, &[4], 30, Box::new(chain));
    drop(handle);
    let (tokens, reason) = read(late);
    assert_eq!(tokens[2..4], [7, 8]);
    assert_eq!((tokens.len(), reason), (6, FinishReason::Stop));
    thread.join().unwrap();
}

#[test]
fn late_positions_have_their_own_logprobs() {
    let (handle, _) = start(EngineConfig::default());
    let plan = |accepted: &[TokenId]| {
        std::thread::sleep(Duration::from_millis(2));
        Ok(match accepted.len() {
            4 => Plan::Force(vec![7, 8]),
            _ => Plan::Sample,
        })
    };
    let chain = Late(Duration::ZERO, Box::new(ScriptedChain::new(plan)));
    let neighbour = submit(&handle, &[3; 30], 100, greedy());
    let events = submit_for_logprobs(&handle, &[4, 5, 6], 12, Box::new(chain), RAW);
    let (tokens, _, reason) = read_all(events);
    assert_eq!((tokens.len(), reason), (15, FinishReason::Length));
    check_logprobs(&tokens);
    assert_eq!(read(neighbour).0, expected(&[3; 30], 100));
}

#[test]
fn a_client_that_leaves_a_late_plan_frees_its_place_at_once() {
    let (handle, thread) = start(EngineConfig {
        max_batch: 1,
        ..EngineConfig::default()
    });
    let (gate, chain) = held_up(1);
    let late = submit(&handle, &[2], 9, chain);
    gate.reached.recv().unwrap();
    drop(late);
    let (tokens, _) = read(submit(&handle, &[5], 9, greedy()));
    assert_eq!(tokens, expected(&[5], 9));
    drop(handle);
    thread.join().unwrap();
    // Only now may the plan end: nothing has waited for it.
    gate.open.send(()).unwrap();
}

#[test]
fn a_late_fault_or_panic_ends_its_own_sequence_alone() {
    let (handle, _) = start(EngineConfig::default());
    let neighbour = submit(&handle, &[9], 60, greedy());
    let fault = Fault {
        stage: "bad".into(),
        kind: "trap",
        message: "unreachable".into(),
    };
    let theirs = fault.clone();
    let plan = move |accepted: &[TokenId]| match accepted.len() {
        2 => Err(theirs.clone()),
        _ => Ok(Plan::Sample),
    };
    let faulty = Late(Duration::ZERO, Box::new(ScriptedChain::new(plan)));
    let events = submit(&handle, &[3], 9, Box::new(faulty));
    let ended = (expected(&[3], 2), FinishReason::PluginError(fault));
    assert_eq!(read(events), ended);
    let plan = |accepted: &[TokenId]| {
        assert!(accepted.len() < 2, "scripted");
        Ok(Plan::Sample)
    };
    let panics = Late(Duration::ZERO, Box::new(ScriptedChain::new(plan)));
    let (tokens, reason) = read(submit(&handle, &[3], 9, Box::new(panics)));
    assert_eq!(tokens, expected(&[3], 2));
    assert!(matches!(reason, FinishReason::PluginError(f) if f.kind == "internal"));
    assert_eq!(read(neighbour).0, expected(&[9], 60));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// However late plans are and whoever else runs, the tokens are those of
    /// a sequence alone, and a plan is asked for once per position.
    #[test]
    fn lateness_leaves_no_trace(
        max_batch in 1usize..5,
        requests in prop::collection::vec(
            (prop::collection::vec(2..V, 1..20), 1u32..8, 0u64..400, 0u64..800), 1..8),
    ) {
        let (handle, _) = start(EngineConfig { max_batch, ..EngineConfig::default() });
        let all: Vec<_> = requests
            .iter()
            .map(|(prompt, max_tokens, patience, slow)| {
                let (patience, slow) = (Duration::from_micros(*patience), *slow);
                let plan = move |accepted: &[TokenId]| {
                    let share = 1 + accepted.len() as u64 % 3;
                    std::thread::sleep(Duration::from_micros(slow / share));
                    Ok(Plan::Sample)
                };
                let calls = Calls::default();
                let inner = Recorder(calls.clone(), Box::new(ScriptedChain::new(plan)));
                let chain = Box::new(Late(patience, Box::new(inner)));
                (calls, submit(&handle, prompt, *max_tokens, chain))
            })
            .collect();
        for ((prompt, max_tokens, ..), (calls, events)) in requests.iter().zip(all) {
            let expected = expected(prompt, *max_tokens as usize);
            prop_assert_eq!(read(events), (expected.clone(), FinishReason::Length));
            let calls = calls.lock().unwrap();
            prop_assert_eq!(calls.len(), expected.len());
            prop_assert_eq!(calls.concat(), &expected[..expected.len() - 1]);
        }
    }
}

/// A plan that waits for its turn, as every plan may.
struct Counting {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    presence: Option<Presence>,
    patience: Option<Duration>,
}

impl Chain for Counting {
    fn plan(&mut self, _: &[TokenId]) -> Result<Plan, Fault> {
        let running = self.running.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(running, SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        self.running.fetch_sub(1, SeqCst);
        Ok(Plan::Force(vec![5]))
    }
    fn finish(&mut self, _: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        unreachable!("every position is forced")
    }
    fn patience(&self) -> Option<Duration> {
        self.patience
    }
    fn take_presence(&mut self) -> Option<Presence> {
        self.presence.take()
    }
}

fn n_processors() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

#[test]
fn no_more_late_plans_compute_at_once_than_there_are_processors() {
    let n = n_processors() + 6;
    let (handle, _) = start(EngineConfig {
        max_batch: n,
        max_waiting: n,
        ..EngineConfig::default()
    });
    let (running, most) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let all: Vec<_> = (0..n)
        .map(|_| {
            let (running, most) = (running.clone(), most.clone());
            let chain = Counting {
                running,
                most,
                presence: None,
                patience: Some(Duration::ZERO),
            };
            submit(&handle, &[4], 4, Box::new(chain))
        })
        .collect();
    for events in all {
        assert_eq!(read(events), (vec![5; 4], FinishReason::Length));
    }
    assert!(most.load(SeqCst) <= n_processors(), "{most:?}");
}

/// They share instances: more turns, or threads, would be held by those that wait
/// for one. Late plans and others.
#[test]
fn plans_of_one_request_compute_one_after_the_other() {
    for patience in [Some(Duration::ZERO), None] {
        let (handle, _) = start(EngineConfig::default());
        let (running, most) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let presence = Presence::default();
        let choices: Vec<_> = (0..6)
            .map(|_| {
                let chain = Counting {
                    running: running.clone(),
                    most: most.clone(),
                    presence: Some(presence.clone()),
                    patience,
                };
                submit(&handle, &[4], 4, Box::new(chain))
            })
            .collect();
        for events in choices {
            assert_eq!(read(events), (vec![5; 4], FinishReason::Length));
        }
        assert_eq!(most.load(SeqCst), 1, "{patience:?}");
    }
}

/// A choice that notes how long it has waited for its turns.
struct Waiting {
    waited: Arc<Mutex<Vec<Duration>>>,
    presence: Option<Presence>,
    shares_plans: bool,
}

impl Chain for Waiting {
    fn plan(&mut self, _: &[TokenId]) -> Result<Plan, Fault> {
        unreachable!("every plan is told how long it has waited")
    }
    fn plan_after(&mut self, waited: Duration, _: &[TokenId]) -> Result<Plan, Fault> {
        self.waited.lock().unwrap().push(waited);
        std::thread::sleep(Duration::from_millis(2));
        Ok(Plan::Force(vec![5]))
    }
    fn finish(&mut self, _: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        unreachable!("every position is forced")
    }
    fn shares_plans(&self) -> bool {
        self.shares_plans
    }
    fn take_presence(&mut self) -> Option<Presence> {
        self.presence.take()
    }
}

/// What it has waited for the plans of the others is told to each choice, but to
/// those that share nothing: they plan as requests of their own.
#[test]
fn a_choice_waits_for_those_it_shares_plans_with_and_is_told_so() {
    const N: usize = 6;
    for shares_plans in [true, false] {
        let (handle, _) = start(EngineConfig::default());
        let waited = Arc::default();
        let presence = Presence::default();
        let choices: Vec<_> = (0..N)
            .map(|_| {
                let chain = Waiting {
                    waited: Arc::clone(&waited),
                    presence: Some(presence.clone()),
                    shares_plans,
                };
                submit(&handle, &[4], 8, Box::new(chain))
            })
            .collect();
        for events in choices {
            assert_eq!(read(events), (vec![5; 8], FinishReason::Length));
        }
        let longest = *waited.lock().unwrap().iter().max().unwrap();
        if shares_plans {
            // Six on two threads would go three rounds.
            let rounds = N.div_ceil(n_processors()) as u32;
            assert!(longest >= Duration::from_millis(2) / rounds, "{longest:?}");
        } else {
            assert_eq!(longest, Duration::ZERO);
        }
    }
}

/// Whoever connects and leaves again piles up nothing behind plans that compute.
#[test]
fn one_that_waits_for_its_turn_to_plan_is_closed_when_its_client_leaves() {
    struct Closing(channel::Sender<()>, Box<dyn Chain>);
    impl Chain for Closing {
        fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
            self.1.plan(accepted)
        }
        fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
            self.1.finish(row)
        }
        fn patience(&self) -> Option<Duration> {
            self.1.patience()
        }
    }
    impl Drop for Closing {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (handle, _) = start(EngineConfig::default());
    let computing: Vec<_> = (0..n_processors())
        .map(|_| {
            let (gate, chain) = held_up(0);
            let events = submit(&handle, &[2, 3], 4, chain);
            gate.reached.recv().unwrap();
            (gate, events)
        })
        .collect();
    for _ in 0..20 {
        let (close, closed) = channel::channel();
        let (gate, chain) = held_up(0);
        let waiting = submit(&handle, &[5], 4, Box::new(Closing(close, chain)));
        until_planning(&handle);
        drop(waiting);
        closed.recv().unwrap();
        assert!(gate.reached.try_recv().is_err(), "it was let in");
    }
    for (gate, events) in computing {
        gate.open.send(()).unwrap();
        assert_eq!(read(events), (expected(&[2, 3], 4), FinishReason::Length));
    }
}

/// Waits until the engine has taken everything into the batch.
fn until_planning(handle: &Handle) {
    while handle.stats().waiting > 0 {
        std::thread::yield_now();
    }
}
