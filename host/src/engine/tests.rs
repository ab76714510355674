//! The engine's promises on a scripted model.
#![allow(clippy::unwrap_used)]

mod draft;
mod late;
mod prefix;
mod together;

use super::{fake::*, *};
use proptest::prelude::*;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};
use tokio::sync::mpsc;

const V: u32 = 12;

fn info(context_length: u32) -> ModelInfo {
    ModelInfo {
        vocabulary_size: V,
        tokenizer_size: V,
        end_of_sequence: vec![1],
        context_length,
    }
}

/// The token after a context: a mixture of all of it, so that one token
/// missing, doubled or of another sequence changes what follows.
fn next(context: &[TokenId]) -> TokenId {
    let hash = context
        .iter()
        .fold(7u32, |h, &t| h.wrapping_mul(31).wrapping_add(t + 1));
    2 + (hash >> 3) % (V - 2)
}

fn script(context: &[TokenId]) -> Vec<f32> {
    let mut row = vec![0.0; V as usize];
    row[next(context) as usize] = 1.0;
    row
}

fn start(config: EngineConfig) -> (Handle, JoinHandle<()>) {
    spawn(config, info(256), || {
        Ok::<_, Infallible>(Box::new(ScriptedModel::new(V as usize, script)) as Box<dyn Model>)
    })
    .unwrap()
}

fn submit(
    handle: &Handle,
    prompt: &[TokenId],
    max_tokens: u32,
    chain: Box<dyn Chain>,
) -> mpsc::Receiver<Event> {
    let (events, receiver) = mpsc::channel(EVENT_BUFFER);
    handle
        .submit(Submission {
            prompt: prompt.to_vec(),
            max_tokens,
            end_ids: vec![1],
            chain,
            logprobs: None,
            events,
        })
        .unwrap();
    receiver
}

fn read(mut events: mpsc::Receiver<Event>) -> (Vec<TokenId>, FinishReason) {
    let mut tokens = Vec::new();
    loop {
        match events.blocking_recv().unwrap() {
            Event::Tokens(more) => tokens.extend(more.iter().map(|token| token.id)),
            Event::Finished(reason) => return (tokens, reason),
            Event::Cached(_) | Event::Drafted { .. } => {}
            other => panic!("nobody asked for {other:?}"),
        }
    }
}

/// What the model says by itself, one token after the other.
fn expected(prompt: &[TokenId], count: usize) -> Vec<TokenId> {
    let mut context = prompt.to_vec();
    for _ in 0..count {
        context.push(next(&context));
    }
    context.split_off(prompt.len())
}

#[test]
fn a_sequence_gets_the_models_tokens_and_ends_at_its_limit() {
    let (handle, thread) = start(EngineConfig::default());
    let events = submit(&handle, &[2, 3, 4], 9, greedy());
    assert_eq!(
        read(events),
        (expected(&[2, 3, 4], 9), FinishReason::Length)
    );
    drop(handle);
    thread.join().unwrap();
}

#[test]
fn limits_of_one_to_four_in_one_batch_give_exactly_as_many_tokens() {
    let (handle, _) = start(EngineConfig::default());
    let all: Vec<_> = (1..=4)
        .map(|n| submit(&handle, &[5, n], n, greedy()))
        .collect();
    for (n, events) in (1..=4).zip(all) {
        let (tokens, reason) = read(events);
        assert_eq!(tokens, expected(&[5, n], n as usize));
        assert_eq!(reason, FinishReason::Length);
    }
}

#[test]
fn an_end_id_is_never_emitted() {
    let force = |ids: Vec<TokenId>| {
        Box::new(ScriptedChain::new(move |accepted| {
            Ok(Plan::Force(vec![ids[accepted.len()]]))
        }))
    };
    let (handle, _) = start(EngineConfig::default());
    let events = submit(&handle, &[2], 9, force(vec![2, 3, 1]));
    assert_eq!(read(events), (vec![2, 3], FinishReason::Stop));
    let events = submit(&handle, &[2], 9, force(vec![1]));
    assert_eq!(read(events), (vec![], FinishReason::Stop));
}

#[test]
fn forced_tokens_join_the_context_that_the_model_and_the_chain_see() {
    let chain = ScriptedChain::new(|accepted: &[TokenId]| {
        Ok(match accepted.len() {
            2 => Plan::Force(vec![7, 8, 9]),
            7 => Plan::Stop,
            _ => Plan::Sample,
        })
    });
    let (handle, _) = start(EngineConfig::default());
    let (tokens, reason) = read(submit(&handle, &[4, 4], 50, Box::new(chain)));
    let mut context = vec![4, 4];
    for i in 0..7 {
        context.push(match i {
            2 => 7,
            3 => 8,
            4 => 9,
            _ => next(&context),
        });
    }
    assert_eq!(tokens, context[2..]);
    assert_eq!(reason, FinishReason::Stop);
}

#[test]
fn a_fault_or_a_panic_ends_its_own_sequence_alone() {
    let fault = Fault {
        stage: "bad".into(),
        kind: "trap",
        message: "unreachable".into(),
    };
    let (handle, _) = start(EngineConfig::default());
    let good: Vec<_> = (2..9)
        .map(|i| submit(&handle, &[i], 40, greedy()))
        .collect();
    let theirs = fault.clone();
    let faulty = submit(
        &handle,
        &[3],
        40,
        Box::new(ScriptedChain::new(move |accepted| {
            if accepted.len() == 2 {
                Err(theirs.clone())
            } else {
                Ok(Plan::Sample)
            }
        })),
    );
    let panics = submit(
        &handle,
        &[3],
        40,
        Box::new(ScriptedChain::new(|accepted| {
            assert!(accepted.len() < 3, "scripted");
            Ok(Plan::Sample)
        })),
    );
    assert_eq!(
        read(faulty),
        (expected(&[3], 2), FinishReason::PluginError(fault))
    );
    let (tokens, reason) = read(panics);
    assert_eq!(tokens, expected(&[3], 3));
    assert!(matches!(reason, FinishReason::PluginError(f) if f.kind == "internal"));
    for (i, events) in (2..9).zip(good) {
        assert_eq!(read(events), (expected(&[i], 40), FinishReason::Length));
    }
}

#[test]
fn a_lost_model_ends_every_sequence_and_refuses_new_ones() {
    #[derive(Default)]
    struct Lost(Logits);
    impl Model for Lost {
        fn vocabulary_size(&self) -> usize {
            V as usize
        }
        fn forward(&mut self, _: &[Row]) -> Result<(), ModelError> {
            Err(ModelError("gone".into()))
        }
        fn logits(&mut self) -> &mut Logits {
            &mut self.0
        }
        fn bytes_per_position(&self) -> usize {
            1
        }
        fn share(&mut self, _: u32, _: u32, _: u32) {}
        fn release(&mut self, _: u32) {}
    }
    let (handle, thread) = spawn(EngineConfig::default(), info(256), || {
        Ok::<_, Infallible>(Box::new(Lost::default()) as Box<dyn Model>)
    })
    .unwrap();
    let (tokens, reason) = read(submit(&handle, &[2], 4, greedy()));
    assert!(tokens.is_empty());
    assert_eq!(reason, FinishReason::EngineError("gone".into()));
    thread.join().unwrap();
    assert!(!handle.is_alive());
    let (events, _receiver) = mpsc::channel(1);
    let refused = handle.submit(Submission {
        prompt: vec![2],
        max_tokens: 1,
        end_ids: vec![],
        chain: greedy(),
        logprobs: None,
        events,
    });
    assert_eq!(refused, Err(SubmitError::Stopped));
}

/// Waits until the engine has nothing left; the test would hang otherwise.
fn until_idle(handle: &Handle) {
    while handle.stats().running + handle.stats().waiting > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_dropped_receiver_frees_the_place_and_closes_the_chain() {
    struct Closed(Arc<Mutex<u32>>, Box<dyn Chain>);
    impl Chain for Closed {
        fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
            self.1.plan(accepted)
        }
        fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
            self.1.finish(row)
        }
    }
    impl Drop for Closed {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
        }
    }
    let closed = Arc::new(Mutex::new(0));
    let (handle, thread) = start(EngineConfig {
        max_batch: 2,
        ..EngineConfig::default()
    });
    for round in 0..50 {
        let all: Vec<_> = (0..4)
            .map(|i| {
                submit(
                    &handle,
                    &[2 + i],
                    200,
                    Box::new(Closed(closed.clone(), greedy())),
                )
            })
            .collect();
        for (i, mut events) in all.into_iter().enumerate() {
            for _ in 0..(round + i) % 3 {
                events.blocking_recv();
            }
        }
    }
    until_idle(&handle);
    assert_eq!(
        read(submit(&handle, &[9], 5, greedy())).0,
        expected(&[9], 5)
    );
    drop(handle);
    thread.join().unwrap();
    assert_eq!(*closed.lock().unwrap(), 200);
}

#[test]
fn a_reader_that_falls_a_buffer_behind_is_cancelled_and_nobody_waits() {
    let (handle, _) = start(EngineConfig::default());
    let (events, mut slow) = mpsc::channel(4);
    handle
        .submit(Submission {
            prompt: vec![2],
            max_tokens: 100,
            end_ids: vec![1],
            chain: greedy(),
            logprobs: None,
            events,
        })
        .unwrap();
    until_idle(&handle);
    let mut tokens = 0;
    while let Some(event) = slow.blocking_recv() {
        assert!(matches!(event, Event::Tokens(_)));
        tokens += 1;
    }
    assert_eq!(tokens, 4);
}

#[test]
fn a_full_queue_and_impossible_submissions_are_refused() {
    let (handle, _) = start(EngineConfig {
        max_batch: 1,
        max_waiting: 0,
        ..EngineConfig::default()
    });
    let try_submit = |prompt: Vec<TokenId>, max_tokens| {
        let (events, _) = mpsc::channel(1);
        handle.submit(Submission {
            prompt,
            max_tokens,
            end_ids: vec![],
            chain: greedy(),
            logprobs: None,
            events,
        })
    };
    assert_eq!(try_submit(vec![2], 1), Err(SubmitError::Busy { limit: 0 }));
    for (prompt, max_tokens) in [(vec![], 1), (vec![V], 1), (vec![2; 200], 57)] {
        let refused = try_submit(prompt, max_tokens);
        assert!(
            matches!(refused, Err(SubmitError::Invalid(_))),
            "{refused:?}"
        );
    }
}

/// Every context a chain was asked about: the accepted tokens of each call.
type Calls = Arc<Mutex<Vec<Vec<TokenId>>>>;

struct Recorder(Calls, Box<dyn Chain>);

impl Chain for Recorder {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        self.0.lock().unwrap().push(accepted.to_vec());
        self.1.plan(accepted)
    }
    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        self.1.finish(row)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever shares the batch, however prompts are cut and whenever a
    /// sequence joins: its tokens are those it gets alone, and its chain is
    /// asked once per position with exactly the tokens that came since.
    #[test]
    fn batching_and_chunking_leave_no_trace(
        max_batch in 1usize..9,
        prefill_chunk in 1usize..20,
        requests in prop::collection::vec(
            (prop::collection::vec(2..V, 1..40), 1u32..12, 0u64..3), 1..12),
    ) {
        let (handle, _) = start(EngineConfig {
            max_batch,
            prefill_chunk,
            max_waiting: 64,
            kv_tokens: 256,
            ..EngineConfig::default()
        });
        let mut all = Vec::new();
        for (prompt, max_tokens, steps) in &requests {
            let until = handle.stats().steps + steps;
            while handle.stats().steps < until && handle.stats().running > 0 {
                std::thread::yield_now();
            }
            let calls = Calls::default();
            let chain = Box::new(Recorder(calls.clone(), greedy()));
            all.push((calls, submit(&handle, prompt, *max_tokens, chain)));
        }
        for ((prompt, max_tokens, _), (calls, events)) in requests.iter().zip(all) {
            let (tokens, reason) = read(events);
            let expected = expected(prompt, *max_tokens as usize);
            prop_assert_eq!(&tokens, &expected);
            prop_assert_eq!(reason, FinishReason::Length);
            let calls = calls.lock().unwrap();
            prop_assert_eq!(calls.len(), expected.len());
            prop_assert!(calls[0].is_empty());
            for (call, token) in calls[1..].iter().zip(&expected) {
                prop_assert_eq!(call, &vec![*token]);
            }
        }
    }
}

/// ln(e / (11 + e)) and ln(1 / (11 + e)): the logprobs of the scripted model's
/// favourite, and of every other token.
const FAVOURITE: f64 = -1.618_729;
const OTHER: f64 = -2.618_729;

fn submit_for_logprobs(
    handle: &Handle,
    prompt: &[TokenId],
    max_tokens: u32,
    chain: Box<dyn Chain>,
    options: LogprobOptions,
) -> mpsc::Receiver<Event> {
    let (events, receiver) = mpsc::channel(EVENT_BUFFER);
    handle
        .submit(Submission {
            prompt: prompt.to_vec(),
            max_tokens,
            end_ids: vec![1],
            chain,
            logprobs: Some(options),
            events,
        })
        .unwrap();
    receiver
}

const RAW: LogprobOptions = LogprobOptions {
    n_top: 1,
    of: LogprobsOf::Raw,
    prompt: true,
};

/// Every token in the order it was handed out, how it ended, and the end id.
fn read_all(mut events: mpsc::Receiver<Event>) -> (Vec<Token>, Option<Token>, FinishReason) {
    let (mut tokens, mut end) = (Vec::new(), None);
    loop {
        match events.blocking_recv().unwrap() {
            Event::Cached(_) | Event::Drafted { .. } => {}
            Event::Prompt(more) | Event::Tokens(more) => tokens.extend(more),
            Event::End(token) => end = Some(token),
            Event::Finished(reason) => return (tokens, end, reason),
        }
    }
}

/// Each token's logprobs are those of the row that its predecessors give.
fn check_logprobs(tokens: &[Token]) {
    assert_eq!(tokens[0].logprobs, None);
    check_logprobs_from(1, tokens);
}

/// The same for the tokens from the `first` on.
fn check_logprobs_from(first: usize, tokens: &[Token]) {
    let ids: Vec<_> = tokens.iter().map(|token| token.id).collect();
    for (i, token) in tokens.iter().enumerate().skip(first) {
        let found = token.logprobs.as_ref().unwrap();
        let favourite = next(&ids[..i]);
        let expected = if token.id == favourite {
            FAVOURITE
        } else {
            OTHER
        };
        assert!((found.logprob - expected).abs() < 1e-5, "{i}: {found:?}");
        assert_eq!(found.top[0].0, favourite, "{i}");
        assert!((found.top[0].1 - FAVOURITE).abs() < 1e-5, "{i}");
    }
}

#[test]
fn prompt_sampled_and_forced_tokens_come_with_the_logprobs_of_their_position() {
    for (prefill_chunk, max_tokens, n_tokens) in [(256, 20, 20), (1, 20, 20), (3, 4, 4)] {
        let (handle, _) = start(EngineConfig {
            prefill_chunk,
            ..EngineConfig::default()
        });
        let chain = ScriptedChain::new(|accepted: &[TokenId]| {
            Ok(match accepted.len() {
                2 | 9 => Plan::Force(vec![7, 8, 9, 7]),
                _ => Plan::Sample,
            })
        });
        let neighbour = submit(&handle, &[3; 30], 30, greedy());
        let prompt = [4, 5, 6, 7, 8];
        let events = submit_for_logprobs(&handle, &prompt, max_tokens, Box::new(chain), RAW);
        let (tokens, end, reason) = read_all(events);
        assert_eq!((end, reason), (None, FinishReason::Length));
        assert_eq!(tokens.len(), prompt.len() + n_tokens);
        assert_eq!(
            tokens[7..].iter().take(2).map(|t| t.id).collect::<Vec<_>>(),
            [7, 8]
        );
        check_logprobs(&tokens);
        assert_eq!(read(neighbour).0, expected(&[3; 30], 30));
    }
}

#[test]
fn an_end_id_is_handed_out_for_its_logprobs_alone() {
    for forced in [vec![1], vec![5, 6, 1, 9]] {
        let list = forced.clone();
        let chain = ScriptedChain::new(move |_: &[TokenId]| Ok(Plan::Force(list.clone())));
        let (handle, _) = start(EngineConfig::default());
        let events = submit_for_logprobs(&handle, &[4, 5], 30, Box::new(chain), RAW);
        let (mut tokens, end, reason) = read_all(events);
        assert_eq!(reason, FinishReason::Stop);
        let end = end.unwrap();
        assert_eq!(end.id, 1);
        tokens.push(end);
        let ids: Vec<_> = tokens[2..].iter().map(|token| token.id).collect();
        let n = forced.iter().position(|&id| id == 1).unwrap();
        assert_eq!(ids, forced[..=n]);
        check_logprobs(&tokens);
    }
}

#[test]
fn a_sequence_of_no_tokens_has_the_prompts_logprobs() {
    let (handle, _) = start(EngineConfig::default());
    for prompt in [&[4][..], &[4, 5, 6]] {
        let (tokens, end, reason) =
            read_all(submit_for_logprobs(&handle, prompt, 0, greedy(), RAW));
        assert_eq!((end, reason), (None, FinishReason::Length));
        assert_eq!(tokens.len(), prompt.len());
        check_logprobs(&tokens);
    }
    assert_eq!(
        read(submit(&handle, &[4], 0, greedy())),
        (vec![], FinishReason::Length)
    );
}

/// A chain that bans the model's favourite and takes the next best.
struct Contrary;

impl Chain for Contrary {
    fn plan(&mut self, _: &[TokenId]) -> Result<Plan, Fault> {
        Ok(Plan::Sample)
    }

    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        let best = row.values().iter().position(|&l| l > 0.5).unwrap();
        row.change(|row| row[best] = f32::NEG_INFINITY);
        Ok(if best == 2 { 3 } else { 2 })
    }
}

#[test]
fn processed_logprobs_are_those_of_the_row_the_sampler_had() {
    let (handle, _) = start(EngineConfig::default());
    let of = |of| LogprobOptions {
        n_top: 20,
        of,
        prompt: false,
    };
    let run = |options| {
        let events = submit_for_logprobs(&handle, &[4], 3, Box::new(Contrary), options);
        read_all(events).0
    };
    // Eleven tokens are left, all alike: ln(1 / 11).
    for token in run(of(LogprobsOf::Processed)) {
        let found = token.logprobs.unwrap();
        assert!((found.logprob + 2.397_895).abs() < 1e-5);
        assert_eq!(found.top.len(), 11);
    }
    for token in run(of(LogprobsOf::Raw)) {
        let found = token.logprobs.unwrap();
        assert!((found.logprob - OTHER).abs() < 1e-5);
        assert_eq!(found.top.len(), 12);
    }
}
