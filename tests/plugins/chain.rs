//! What chains do when every stage behaves.

use serde_json::json;
use sluice::engine::{Chain, Plan, TokenId};
use sluice::plugin::{ChainError, Kind, OpenError, StageRef, check_chain};

use crate::support::{
    ONE, TOKENIZER_SIZE, info, on_guest_thread, open, open_choices, row, runtime, stage, vocabulary,
};

/// The best token, from the shipped sampler.
fn greedy() -> StageRef {
    stage("sampler", json!({"temperature": 0}))
}

fn force(ids: &[TokenId]) -> StageRef {
    stage("force", json!({"ids": ids}))
}

fn sample(chain: &mut dyn Chain, accepted: &[TokenId], best: TokenId) -> TokenId {
    assert_eq!(chain.plan(accepted).unwrap(), Plan::Sample);
    chain.finish_values(&mut row(best)).unwrap()
}

#[test]
fn greedy_takes_the_best_token_that_is_no_padding() {
    on_guest_thread(|| {
        let mut chain = open(&[greedy()]).unwrap();
        assert_eq!(sample(&mut *chain, &[], 7), 7);
        assert_eq!(sample(&mut *chain, &[7], TOKENIZER_SIZE), 0);
        assert_eq!(
            sample(&mut *chain, &[7], TOKENIZER_SIZE - 1),
            TOKENIZER_SIZE - 1
        );
    });
}

#[test]
fn edits_of_a_plan_change_the_row() {
    on_guest_thread(|| {
        let rules = stage("rules", json!({"logit_bias": {"7": -100}}));
        let mut chain = open(&[rules, greedy()]).unwrap();
        assert_eq!(chain.plan(&[]).unwrap(), Plan::Sample);
        let mut changed = row(7);
        assert_eq!(chain.finish_values(&mut changed).unwrap(), 0);
        let mut expected = row(7);
        expected[7] = -90.0;
        expected[TOKENIZER_SIZE as usize..].fill(f32::NEG_INFINITY);
        assert_eq!(changed, expected);
    });
}

#[test]
fn a_logits_processor_sees_and_changes_what_the_stages_before_left() {
    on_guest_thread(|| {
        let rules = stage("rules", json!({"allowed_token_ids": [3, 4]}));
        let identity = stage("identity", json!({"row": true}));
        let boost = stage("boost", json!({"id": 4, "value": 1.0}));
        let banned = stage("boost", json!({"id": 9, "value": 50.0}));
        let stages = [rules.clone(), identity.clone(), banned, greedy()];
        assert_eq!(sample(&mut *open(&stages).unwrap(), &[], 7), 3);
        let stages = [rules, identity, boost, greedy()];
        assert_eq!(sample(&mut *open(&stages).unwrap(), &[], 7), 4);
    });
}

#[test]
fn the_first_decision_wins_and_later_stages_see_the_tokens() {
    on_guest_thread(|| {
        let counter = stage("counter", json!({}));
        let mut chain = open(&[force(&[9]), counter, greedy()]).unwrap();
        assert_eq!(chain.plan(&[]).unwrap(), Plan::Force(vec![9]));
        // The counter was not asked about the first position, and forces two
        // more than the tokens it has seen.
        assert_eq!(chain.plan(&[9]).unwrap(), Plan::Force(vec![3]));
        assert_eq!(chain.plan(&[3]).unwrap(), Plan::Force(vec![4]));
    });
}

#[test]
fn a_sampler_sees_the_tokens_that_were_forced_before_it() {
    on_guest_thread(|| {
        let sampler = stage("force-sampler", json!({"ids": [1, 1, 5, 6]}));
        let mut chain = open(&[force(&[7, 8]), sampler]).unwrap();
        assert_eq!(chain.plan(&[]).unwrap(), Plan::Force(vec![7]));
        assert_eq!(chain.plan(&[7]).unwrap(), Plan::Force(vec![8]));
        assert_eq!(sample(&mut *chain, &[8], 0), 5);
        assert_eq!(sample(&mut *chain, &[5], 0), 6);
    });
}

#[test]
fn edits_of_a_position_that_was_decided_are_void() {
    on_guest_thread(|| {
        let deny = stage("misbehave-token", json!({"fault": "deny", "after": 0}));
        let mut chain = open(&[deny, force(&[9]), greedy()]).unwrap();
        assert_eq!(chain.plan(&[]).unwrap(), Plan::Force(vec![9]));
        assert_eq!(chain.plan(&[9]).unwrap(), Plan::Sample);
        // Denied once, at this position: the best but one is id 1.
        assert_eq!(chain.finish_values(&mut row(0)).unwrap(), 1);
    });
}

#[test]
fn a_stage_can_stop_the_sequence() {
    on_guest_thread(|| {
        let stop = stage("stop-at", json!({"tokens": 2}));
        let mut chain = open(&[stop, greedy()]).unwrap();
        assert_eq!(sample(&mut *chain, &[], 7), 7);
        assert_eq!(sample(&mut *chain, &[7], 8), 8);
        assert_eq!(chain.plan(&[8]).unwrap(), Plan::Stop);
    });
}

#[test]
fn choices_have_states_of_their_own_in_one_instance() {
    on_guest_thread(|| {
        let stages = [stage("counter", json!({})), greedy()];
        let mut chains = open_choices(&stages, 0, 3).unwrap();
        assert_eq!(chains.len(), 3);
        let mut accepted: Vec<Vec<TokenId>> = vec![Vec::new(); 3];
        for position in 0..3 {
            for (chain, accepted) in chains.iter_mut().zip(&mut accepted) {
                let plan = chain.plan(accepted).unwrap();
                assert_eq!(plan, Plan::Force(vec![position + 2]));
                *accepted = vec![position + 2];
            }
        }
    });
}

/// Draws eight tokens from an even row.
fn draws(chain: &mut dyn Chain) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    let mut accepted = Vec::new();
    for _ in 0..8 {
        assert_eq!(chain.plan(&accepted).unwrap(), Plan::Sample);
        let token = chain.finish_values(&mut vec![0.0; row(0).len()]).unwrap();
        tokens.push(token);
        accepted = vec![token];
    }
    tokens
}

#[test]
fn chance_depends_on_seed_and_choice_alone() {
    on_guest_thread(|| {
        let sampler = || stage("sampler", json!({"temperature": 1}));
        let of = |stages: &[StageRef], seed| -> Vec<_> {
            let mut chains = open_choices(stages, seed, 2).unwrap();
            chains.iter_mut().map(|chain| draws(&mut **chain)).collect()
        };
        let first = of(&[sampler()], 42);
        assert_ne!(first[0], first[1]);
        assert_eq!(of(&[sampler()], 42), first);
        assert_ne!(of(&[sampler()], -1), first);
        let identity = stage("identity", json!({}));
        assert_eq!(of(&[identity, sampler()], 42), first);
    });
}

/// The row that a chain's processors leave, and the token.
fn finished(chain: &mut dyn Chain, accepted: &[TokenId]) -> (Vec<f32>, TokenId) {
    assert_eq!(chain.plan(accepted).unwrap(), Plan::Sample);
    let mut row = row(11);
    let token = chain.finish_values(&mut row).unwrap();
    (row, token)
}

#[test]
fn a_replay_in_one_call_equals_the_calls_it_replaces() {
    on_guest_thread(|| {
        let stages = || {
            let rules = json!({"min_tokens": 6, "no_repeat_ngram_size": 2, "bad_words": [[4, 6]]});
            let penalties = json!({"repetition_penalty": 1.3, "presence_penalty": 0.5});
            [
                stage("rules", rules),
                stage("penalties", penalties),
                greedy(),
            ]
        };
        let tokens = [5, 9, 4, 4, 6, 9, 5, 4, 11, 11, 3, 4];
        let mut chain = open(&stages()).unwrap();
        let mut incremental = vec![finished(&mut *chain, &[])];
        for token in &tokens {
            incremental.push(finished(&mut *chain, &[*token]));
        }
        for (n, expected) in incremental.iter().enumerate() {
            let mut chain = open(&stages()).unwrap();
            assert_eq!(
                finished(&mut *chain, &tokens[..n]),
                *expected,
                "after {n} tokens"
            );
        }
    });
}

#[test]
fn stages_in_the_wrong_order_are_no_chain() {
    let boost = || stage("boost", json!({"id": 1, "value": 1.0}));
    assert_eq!(boost().plugin.kind, Kind::LogitsProcessor);
    let error = check_chain(&[boost(), force(&[1]), greedy()]).unwrap_err();
    assert_eq!(error.index(), Some(1));
    assert!(error.to_string().contains("force"), "{error}");
    assert_eq!(check_chain(&[boost()]), Err(ChainError::NoSampler));
    let opened = runtime().open(&vocabulary(), &[boost()], &info(), ONE);
    assert!(matches!(
        opened,
        Err(OpenError::Chain(ChainError::NoSampler))
    ));
}

#[test]
fn parameters_are_checked_against_the_schema_and_then_by_the_plugin() {
    on_guest_thread(|| {
        let plugin = force(&[1]).plugin;
        assert!(plugin.validate_params(&json!({"ids": [1]})).is_ok());
        let error = plugin.validate_params(&json!({"ids": [-1]})).unwrap_err();
        assert_eq!(error.pointer, "/ids/0");
        let error = plugin.validate_params(&json!({})).unwrap_err();
        assert_eq!(error.pointer, "");

        // The schema cannot know how large the vocabulary is.
        let rules = stage("rules", json!({"allowed_token_ids": [100_000]}));
        match open(&[rules, greedy()]) {
            Err(OpenError::InvalidParams { stage, .. }) => assert_eq!(stage, "rules"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened"),
        }
    });
}
