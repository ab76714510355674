//! Prompts that begin as others did.

use super::*;
use std::collections::HashMap;

/// A model that ends when its cache holds more than it may.
struct Bounded {
    inner: Box<dyn Model>,
    held: HashMap<u32, usize>,
    most: usize,
}

impl Bounded {
    fn check(&self) -> Result<(), ModelError> {
        let held: usize = self.held.values().sum();
        if held > self.most {
            return Err(ModelError(format!(
                "{held} tokens in a cache of {}",
                self.most
            )));
        }
        Ok(())
    }
}

impl Model for Bounded {
    fn vocabulary_size(&self) -> usize {
        self.inner.vocabulary_size()
    }
    fn forward(&mut self, rows: &[Row]) -> Result<(), ModelError> {
        for row in rows {
            self.held.insert(row.slot, row.position as usize + 1);
        }
        self.check()?;
        self.inner.forward(rows)
    }
    fn logits(&mut self) -> &mut Logits {
        self.inner.logits()
    }
    fn bytes_per_position(&self) -> usize {
        1
    }
    fn share(&mut self, from: u32, slot: u32, n_positions: u32) {
        assert!(!self.held.contains_key(&slot), "the slot holds something");
        assert!(self.held[&from] >= n_positions as usize);
        self.held.insert(slot, n_positions as usize);
        self.inner.share(from, slot, n_positions);
    }
    fn release(&mut self, slot: u32) {
        self.held.remove(&slot);
        self.inner.release(slot);
    }
}

/// Without drafts, so that rows can be counted.
fn start_bounded(config: EngineConfig) -> Handle {
    let config = EngineConfig {
        draft_rows: 0,
        ..config
    };
    let most = config.kv_tokens;
    let model = move || {
        Ok::<_, Infallible>(Box::new(Bounded {
            inner: Box::new(ScriptedModel::new(V as usize, script)),
            held: HashMap::new(),
            most,
        }) as Box<dyn Model>)
    };
    spawn(config, info(256), model).unwrap().0
}

/// Some tokens, others for each seed.
fn text(seed: u32, count: usize) -> Vec<TokenId> {
    (0..count as u32)
        .map(|i| 2 + (seed * 7 + i * i * (3 + seed)) % (V - 2))
        .collect()
}

/// Tokens, cached prompt tokens, how it ended.
fn read_cached(mut events: mpsc::Receiver<Event>) -> (Vec<TokenId>, usize, FinishReason) {
    let (mut tokens, mut cached) = (Vec::new(), 0);
    loop {
        match events.blocking_recv().unwrap() {
            Event::Cached(n) => cached = n,
            Event::Tokens(more) => tokens.extend(more.iter().map(|token| token.id)),
            Event::Drafted { .. } => {}
            Event::Finished(reason) => return (tokens, cached, reason),
            other => panic!("nobody asked for {other:?}"),
        }
    }
}

#[test]
fn the_next_turn_of_a_chat_computes_only_what_is_new() {
    let handle = start_bounded(EngineConfig::default());
    let mut chat = text(1, 40);
    let mut rows = 0;
    // All but the reply's last token is in the cache: 43, 43 + 10, and so on.
    for (turn, cached) in [0, 43, 53, 63].into_iter().enumerate() {
        let (reply, n_cached, _) = read_cached(submit(&handle, &chat, 4, greedy()));
        assert_eq!(reply, expected(&chat, 4));
        assert_eq!(n_cached, cached, "{turn}");
        rows += chat.len() - cached + 3;
        chat.extend(reply);
        chat.extend(text(9 + turn as u32, 6));
    }
    until_idle(&handle);
    assert_eq!(handle.stats().rows, rows as u64);
}

#[test]
fn the_last_token_of_a_prompt_is_always_computed() {
    let handle = start_bounded(EngineConfig::default());
    let prompt = text(2, 30);
    for cached in [0, 29, 29] {
        let (tokens, n_cached, _) = read_cached(submit(&handle, &prompt, 8, greedy()));
        assert_eq!((tokens, n_cached), (expected(&prompt, 8), cached));
    }
}

#[test]
fn choices_of_one_prompt_compute_it_once() {
    let handle = start_bounded(EngineConfig {
        prefill_chunk: 7,
        ..EngineConfig::default()
    });
    let prompt = text(3, 60);
    let choices: Vec<_> = (0..8)
        .map(|_| submit(&handle, &prompt, 5, greedy()))
        .collect();
    for choice in choices {
        assert_eq!(read(choice), (expected(&prompt, 5), FinishReason::Length));
    }
    until_idle(&handle);
    // The prompt, its last token for seven others, four tokens of each.
    assert_eq!(handle.stats().rows, 60 + 7 + 8 * 4);
}

#[test]
fn one_that_waits_for_a_prompt_goes_on_when_that_goes_away() {
    let handle = start_bounded(EngineConfig {
        prefill_chunk: 1,
        ..EngineConfig::default()
    });
    let prompt = text(3, 120);
    for _ in 0..20 {
        let first = submit(&handle, &prompt, 5, greedy());
        let second = submit(&handle, &prompt, 5, greedy());
        drop(first);
        assert_eq!(read(second), (expected(&prompt, 5), FinishReason::Length));
    }
}

#[test]
fn nothing_is_kept_without_memory_for_it() {
    let handle = start_bounded(EngineConfig {
        prefix_bytes: 0,
        ..EngineConfig::default()
    });
    let prompt = text(4, 50);
    for _ in 0..2 {
        let (tokens, cached, _) = read_cached(submit(&handle, &prompt, 3, greedy()));
        assert_eq!((tokens, cached), (expected(&prompt, 3), 0));
    }
}

#[test]
fn what_was_used_longest_ago_makes_way() {
    // Room for two prompts of 32 + 2 tokens, of which 33 are computed.
    let handle = start_bounded(EngineConfig {
        prefix_bytes: 70,
        ..EngineConfig::default()
    });
    let ask = |seed| read_cached(submit(&handle, &text(seed, 32), 2, greedy())).1;
    assert_eq!([1, 2, 1, 3].map(ask), [0, 0, 31, 0]);
    assert_eq!([1, 3, 2].map(ask), [31, 31, 0]);
}

#[test]
fn sequences_that_outgrow_the_cache_take_turns() {
    // One of them holds at most 90 tokens, all of them 360.
    let handle = start_bounded(EngineConfig {
        kv_tokens: 100,
        ..EngineConfig::default()
    });
    let submitted: Vec<_> = (1..5)
        .map(|seed| {
            let calls = Calls::default();
            let chain = Box::new(Recorder(calls.clone(), greedy()));
            (seed, calls, submit(&handle, &text(seed, 20), 70, chain))
        })
        .collect();
    for (seed, calls, events) in submitted {
        let expected = expected(&text(seed, 20), 70);
        assert_eq!(read(events), (expected.clone(), FinishReason::Length));
        assert_eq!(calls.lock().unwrap().concat(), expected[..69]);
    }
    assert!(handle.stats().preempted > 0);
}

#[test]
fn the_logprobs_of_one_that_made_room_are_its_own() {
    let handle = start_bounded(EngineConfig {
        kv_tokens: 100,
        prefill_chunk: 9,
        ..EngineConfig::default()
    });
    let submitted: Vec<_> = (1..5)
        .map(|seed| submit_for_logprobs(&handle, &text(seed, 20), 70, greedy(), RAW))
        .collect();
    for events in submitted {
        let (tokens, _, reason) = read_all(events);
        assert_eq!((tokens.len(), reason), (90, FinishReason::Length));
        check_logprobs(&tokens);
    }
    assert!(handle.stats().preempted > 0);
}

#[test]
fn a_prompt_that_fills_the_cache_is_admitted() {
    let handle = start_bounded(EngineConfig {
        kv_tokens: 40,
        ..EngineConfig::default()
    });
    let (tokens, ..) = read_all(submit_for_logprobs(&handle, &text(1, 40), 0, greedy(), RAW));
    assert_eq!(tokens.len(), 40);
}

#[test]
fn a_prompt_whose_logprobs_are_wanted_is_computed_whole() {
    let handle = start_bounded(EngineConfig::default());
    let prompt = text(5, 40);
    for _ in 0..2 {
        let events = submit_for_logprobs(&handle, &prompt, 3, greedy(), RAW);
        let (tokens, _, _) = read_all(events);
        assert_eq!(tokens.len(), 43);
        check_logprobs(&tokens);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever was kept, shared or given up: tokens are those of a sequence
    /// alone, and the cache never holds more than it may.
    #[test]
    fn reuse_leaves_no_trace(
        max_batch in 1usize..6,
        prefill_chunk in 1usize..40,
        kv_tokens in 120usize..260,
        prefix_bytes in 0usize..300,
        requests in prop::collection::vec(
            (0u32..3, 1usize..90, 0u32..3, 0usize..20, 1u32..10, 0u8..8), 1..24),
    ) {
        let handle = start_bounded(EngineConfig {
            max_batch,
            prefill_chunk,
            max_waiting: 64,
            kv_tokens,
            prefix_bytes,
            ..EngineConfig::default()
        });
        let mut all = Vec::new();
        for (seed, length, tail, tail_length, max_tokens, fate) in requests {
            let prompt = [text(seed, length), text(10 + tail, tail_length)].concat();
            let events = submit(&handle, &prompt, max_tokens, greedy());
            match fate {
                // A client that leaves.
                0 => drop(events),
                // One that waits for its answer before the next comes.
                1..4 => {
                    let expected = expected(&prompt, max_tokens as usize);
                    prop_assert_eq!(read(events), (expected, FinishReason::Length));
                }
                _ => all.push((prompt, max_tokens, events)),
            }
        }
        for (prompt, max_tokens, events) in all {
            let expected = expected(&prompt, max_tokens as usize);
            let (tokens, cached, reason) = read_cached(events);
            prop_assert_eq!((tokens, reason), (expected, FinishReason::Length));
            prop_assert!(cached < prompt.len());
        }
    }
}

/// A list joins the context at once, its logprobs come a step later. In between
/// the youngest makes room; what its twins left must not stand for the rows whose
/// logprobs it still waits for.
#[test]
fn a_forced_list_that_made_room_keeps_its_logprobs() {
    let forced = || {
        Box::new(ScriptedChain::new(|accepted: &[TokenId]| {
            Ok(match accepted.len() {
                0 => Plan::Force(vec![7, 8, 9, 7, 8]),
                _ => Plan::Sample,
            })
        }))
    };
    // Three hold 21 tokens each at first, and 26 with the list.
    let handle = start_bounded(EngineConfig {
        kv_tokens: 70,
        ..EngineConfig::default()
    });
    let prompt = text(6, 20);
    let options = LogprobOptions {
        prompt: false,
        ..RAW
    };
    // All of them begin in one step: none plans before all were handed over.
    let (all_there, wait) = std::sync::mpsc::channel();
    let first = ScriptedChain::new(move |_: &[TokenId]| {
        wait.recv().unwrap();
        Ok(Plan::Sample)
    });
    let first = submit(&handle, &[3], 1, Box::new(first));
    let choices: Vec<_> = (0..3)
        .map(|_| submit_for_logprobs(&handle, &prompt, 12, forced(), options))
        .collect();
    all_there.send(()).unwrap();
    read(first);
    let mut expected = [&prompt[..], &[7, 8, 9, 7, 8]].concat();
    while expected.len() < 32 {
        expected.push(next(&expected));
    }
    for events in choices {
        let (generated, _, reason) = read_all(events);
        assert_eq!(reason, FinishReason::Length);
        let known = prompt.iter().map(|&id| Token { id, logprobs: None });
        let all: Vec<_> = known.chain(generated).collect();
        let ids: Vec<_> = all.iter().map(|token| token.id).collect();
        assert_eq!(ids, expected);
        check_logprobs_from(20, &all);
    }
    assert!(handle.stats().preempted > 0);
}

/// A prompt that contains what another is generating begins with what there is
/// of it: that one may take as long as it likes.
#[test]
fn nobody_waits_for_what_another_generates() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let handle = start_bounded(EngineConfig::default());
    let prompt = text(3, 20);
    let planned = Arc::new(AtomicUsize::new(0));
    let (both_there, wait) = std::sync::mpsc::channel();
    let count = planned.clone();
    let writer = ScriptedChain::new(move |accepted: &[TokenId]| {
        if accepted.is_empty() {
            wait.recv().unwrap();
        }
        count.fetch_add(1, SeqCst);
        Ok(Plan::Sample)
    });
    let written = submit(&handle, &prompt, 200, Box::new(writer));
    let longer = [prompt.clone(), expected(&prompt, 150)].concat();
    let begun = Arc::new(AtomicUsize::new(0));
    let (seen, begins) = (planned.clone(), begun.clone());
    let reader = ScriptedChain::new(move |_: &[TokenId]| {
        begins.store(seen.load(SeqCst), SeqCst);
        Ok(Plan::Sample)
    });
    let events = submit(&handle, &longer, 1, Box::new(reader));
    both_there.send(()).unwrap();
    assert_eq!(read(events).0, expected(&longer, 1));
    // It is asked in the step after the one it came in.
    assert!(begun.load(SeqCst) <= 3, "{begun:?}");
    assert_eq!(read(written).0, expected(&prompt, 200));
}
