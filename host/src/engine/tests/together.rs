//! Everything that may change when a row is computed, at once: prompts in
//! chunks, prefixes that others left, drafts, late plans, sequences that make
//! room and clients that leave.

use super::{draft::*, late::Late, *};
use std::time::Duration;

/// A request of the test.
#[derive(Clone, Debug)]
struct Asked {
    prompt: Vec<TokenId>,
    max_tokens: u32,
    acts: Vec<(usize, Act)>,
    /// Whether logprobs are wanted, and then whether those of the prompt are.
    logprobs: Option<bool>,
    /// How long the batch waits for its plans and how long they take, in
    /// microseconds.
    late: Option<(u64, u64)>,
    /// Tokens after which its client leaves.
    leaves: Option<usize>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let prompt = (0u32..2, 1usize..50, prop::collection::vec(2..6u32, 0..12));
    let acts = prop::collection::vec((0usize..40, act()), 0..3);
    let leaves = prop::option::weighted(0.2, 0usize..10);
    let late = prop::option::weighted(0.3, (0u64..300, 0u64..300));
    (
        prompt,
        1u32..50,
        acts,
        prop::option::of(any::<bool>()),
        late,
        leaves,
    )
        .prop_map(
            |((seed, shared, own), max_tokens, acts, logprobs, late, leaves)| Asked {
                prompt: (0..shared as u32)
                    .map(|i| 2 + (seed + i * i) % 4)
                    .chain(own)
                    .collect(),
                max_tokens,
                acts,
                logprobs,
                late,
                leaves,
            },
        )
}

impl Asked {
    fn submit(&self, handle: &Handle) -> (Calls, mpsc::Receiver<Event>) {
        let calls = Calls::default();
        let mut chain: Box<dyn Chain> = Box::new(Recorder(calls.clone(), acting(&self.acts)));
        if let Some((patience, slow)) = self.late {
            let slow = Slow(Duration::from_micros(slow), chain);
            chain = Box::new(Late(Duration::from_micros(patience), Box::new(slow)));
        }
        let events = match self.logprobs {
            None => submit(handle, &self.prompt, self.max_tokens, chain),
            Some(prompt) => {
                let options = LogprobOptions { prompt, ..RAW };
                submit_for_logprobs(handle, &self.prompt, self.max_tokens, chain, options)
            }
        };
        (calls, events)
    }
}

/// A chain whose plans take this long.
struct Slow(Duration, Box<dyn Chain>);

impl Chain for Slow {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<Plan, Fault> {
        std::thread::sleep(self.0);
        self.1.plan(accepted)
    }
    fn finish(&mut self, row: &mut LogitsRow<'_>) -> Result<TokenId, Fault> {
        self.1.finish(row)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Each request that stays has the tokens, logprobs and end that it has
    /// alone on a server that does none of this, and its chain was told the
    /// same in the same calls.
    #[test]
    fn all_of_it_together_leaves_no_trace(
        max_batch in 1usize..6,
        prefill_chunk in 1usize..30,
        kv_tokens in 130usize..260,
        prefix_bytes in 0usize..300,
        draft_rows in 0usize..12,
        requests in prop::collection::vec(asked(), 1..12),
    ) {
        let together = start_repetitive(EngineConfig {
            max_batch,
            prefill_chunk,
            max_waiting: 64,
            kv_tokens,
            prefix_bytes,
            draft_rows,
        });
        let mut running = Vec::new();
        for request in &requests {
            let (calls, mut events) = request.submit(&together);
            match request.leaves {
                // A client that leaves after some events.
                Some(count) => {
                    for _ in 0..count {
                        if events.blocking_recv().is_none() {
                            break;
                        }
                    }
                }
                None => running.push((request, calls, events)),
            }
        }
        for (request, calls, events) in running {
            let plain = EngineConfig { max_batch: 1, prefix_bytes: 0, draft_rows: 0, ..EngineConfig::default() };
            let alone = start_repetitive(plain);
            let (calls_alone, events_alone) = request.submit(&alone);
            prop_assert_eq!(read_drafted(events).0, read_drafted(events_alone).0);
            prop_assert_eq!(&*calls.lock().unwrap(), &*calls_alone.lock().unwrap());
        }
    }
}
