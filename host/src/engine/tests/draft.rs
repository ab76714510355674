//! Drafts from the text itself.

use super::*;

/// A model that repeats itself, and changes its ways now and then.
fn repetitive(context: &[TokenId]) -> Vec<f32> {
    let at = |back: usize| context.get(context.len().wrapping_sub(back)).copied();
    let (a, b) = (at(1).unwrap_or(0), at(2).unwrap_or(0));
    let way = (context.len() / 23) as u32;
    let mut row = vec![0.0; V as usize];
    row[(1 + (3 * a + b + way) % 6) as usize] = 1.0;
    row
}

pub(super) fn start_repetitive(config: EngineConfig) -> Handle {
    let model = || {
        Ok::<_, Infallible>(Box::new(ScriptedModel::new(V as usize, repetitive)) as Box<dyn Model>)
    };
    spawn(config, info(256), model).unwrap().0
}

/// What a reader gets: tokens with their logprobs, the end id, the reason; and
/// how many drafted tokens were right and wrong.
pub(super) type Answer = (Vec<Token>, Option<Token>, FinishReason);

pub(super) fn read_drafted(mut events: mpsc::Receiver<Event>) -> (Answer, [usize; 2]) {
    let (mut tokens, mut end, mut drafted) = (Vec::new(), None, [0; 2]);
    loop {
        match events.blocking_recv().unwrap() {
            Event::Cached(_) => {}
            Event::Prompt(more) | Event::Tokens(more) => tokens.extend(more),
            Event::End(token) => end = Some(token),
            Event::Drafted { accepted, rejected } => drafted = [accepted, rejected],
            Event::Finished(reason) => return ((tokens, end, reason), drafted),
        }
    }
}

#[test]
fn text_that_repeats_itself_takes_fewer_steps() {
    // Counts up and begins again, so that every draft is right.
    let cycle = |context: &[TokenId]| {
        let mut row = vec![0.0; V as usize];
        row[(2 + (context.last().unwrap() - 1) % 9) as usize] = 1.0;
        row
    };
    let expected: Vec<TokenId> = (0..60).map(|i| 2 + i % 9).collect();
    for (draft_rows, most_steps) in [(0, 60), (2, 45), (8, 30)] {
        let config = EngineConfig {
            draft_rows,
            ..EngineConfig::default()
        };
        let model =
            move || Ok::<_, Infallible>(Box::new(ScriptedModel::new(V as usize, cycle)) as _);
        let (handle, _) = spawn(config, info(256), model).unwrap();
        let calls = Calls::default();
        let chain = Box::new(Recorder(calls.clone(), greedy()));
        let ((tokens, ..), drafted) = read_drafted(submit(&handle, &[9, 10], 60, chain));
        let ids: Vec<_> = tokens.iter().map(|token| token.id).collect();
        assert_eq!(ids, expected);
        assert_eq!(calls.lock().unwrap().len(), 60);
        until_idle(&handle);
        let steps = handle.stats().steps;
        assert!(steps <= most_steps, "{draft_rows}: {steps} steps");
        assert_eq!(steps + drafted[0] as u64, 60);
        assert_eq!(drafted[1], 0);
    }
}

/// What a chain does at some positions.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Force(Vec<TokenId>),
    Stop,
    Fail,
}

pub(super) fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => prop::collection::vec(2..V, 1..4).prop_map(Act::Force),
        1 => Just(Act::Stop),
        1 => Just(Act::Fail),
    ]
}

pub(super) fn acting(acts: &[(usize, Act)]) -> Box<dyn Chain> {
    let acts: std::collections::HashMap<_, _> = acts.iter().cloned().collect();
    Box::new(ScriptedChain::new(move |accepted: &[TokenId]| {
        match acts.get(&accepted.len()) {
            None => Ok(Plan::Sample),
            Some(Act::Force(tokens)) => Ok(Plan::Force(tokens.clone())),
            Some(Act::Stop) => Ok(Plan::Stop),
            Some(Act::Fail) => Err(Fault {
                stage: "bad".into(),
                kind: "trap",
                message: "unreachable".into(),
            }),
        }
    }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// With drafts or without: the same tokens with the same logprobs and the
    /// same end, and a chain that is told the same in the same calls.
    #[test]
    fn drafts_leave_no_trace(
        draft_rows in 1usize..20,
        requests in prop::collection::vec((
            prop::collection::vec(2..6u32, 1..30),
            1u32..80,
            prop::collection::vec((0usize..60, act()), 0..4),
            prop::option::of(prop::bool::ANY),
        ), 1..5),
    ) {
        let run = |draft_rows| {
            let handle = start_repetitive(EngineConfig {
                draft_rows,
                ..EngineConfig::default()
            });
            let submitted: Vec<_> = requests
                .iter()
                .map(|(prompt, max_tokens, acts, logprobs)| {
                    let calls = Calls::default();
                    let chain = Box::new(Recorder(calls.clone(), acting(acts)));
                    let events = match logprobs {
                        None => submit(&handle, prompt, *max_tokens, chain),
                        Some(prompt_too) => {
                            let options = LogprobOptions { prompt: *prompt_too, ..RAW };
                            submit_for_logprobs(&handle, prompt, *max_tokens, chain, options)
                        }
                    };
                    (events, calls)
                })
                .collect();
            submitted
                .into_iter()
                .map(|(events, calls)| {
                    let answer = read_drafted(events).0;
                    let calls = calls.lock().unwrap().clone();
                    (answer, calls)
                })
                .collect::<Vec<_>>()
        };
        prop_assert_eq!(run(draft_rows), run(0));
    }
}
