//! The harness stands in for the host.
#![allow(clippy::unwrap_used, clippy::float_cmp)]

use serde::Deserialize;
use sluice_plugin::{
    Description, LogitsProcessor, OpenError, Plugin, Sampler, SequenceInfo, TokenId,
    TokenProcessor, control, edits, export, log, logits, random,
    schemars::{self, JsonSchema},
    testing::{self, Edit, Outcome, Setup},
    vocabulary,
};

const BANNED: f32 = f32::NEG_INFINITY;

fn description(name: &'static str) -> Description {
    Description {
        name,
        version: "0.1.0",
        summary: "For tests.",
    }
}

/// Does what it is told, with the ids 1 and 2.
struct Does(What);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    what: What,
}

#[derive(Deserialize, JsonSchema, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum What {
    Edit,
    DenyAll,
    Outside,
    Force,
    ForceTwice,
    Stop,
    Read,
    Panic,
    Fail,
    RefuseParams,
    FailToOpen,
    PanicInOpen,
    Overflow,
}

impl Plugin for Does {
    type Params = Params;

    fn describe() -> Description {
        description("does")
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        match params.what {
            What::RefuseParams => Err(OpenError::InvalidParams("not these".into())),
            What::FailToOpen => Err(OpenError::Failed("no more".into())),
            What::PanicInOpen => panic!("at {:?}", sequence.prompt),
            what => Ok(Self(what)),
        }
    }
}

impl TokenProcessor for Does {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        log::write(log::Level::Info, &format!("told of {accepted:?}"));
        match self.0 {
            What::Edit => {
                edits::scale(&[1, 1, 2], 2.0);
                edits::add(&[1, 1], &[0.5, 0.25]);
                edits::add_masked(&[0b101], 1.0);
                edits::mask(&[0b1_0111]);
                edits::deny(&[4]);
            }
            What::DenyAll => edits::mask(&[]),
            What::Outside => edits::allow(&[99]),
            What::Force => control::force(&[2, 1]),
            What::ForceTwice => {
                control::force(&[2]);
                control::stop();
            }
            What::Stop => control::stop(),
            What::Read => drop(logits::row()),
            What::Panic => panic!("no {}", 7),
            What::Fail => return Err("not today".into()),
            What::Overflow => edits::add(&[0], &[f32::MAX]),
            _ => {}
        }
        Ok(())
    }
}

export!(TokenProcessor for Does);

fn does(what: &str) -> testing::Sequence<Does> {
    let params = format!(r#"{{"what": "{what}"}}"#);
    Setup::new(5).params(params).open().unwrap()
}

fn failure(what: &str) -> (&'static str, String) {
    match does(what).step(&[], &[1.0, 0.0, 0.0, 0.0, 0.0]) {
        Outcome::Failed(failure) => (failure.kind, failure.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn edits_are_applied_in_order() {
    let mut sequence = does("edit");
    let outcome = sequence.step(&[3], &[1.0, 4.0, -3.0, 9.0, 2.0]);
    // Halved 4 and doubled -3, then 0.75 to the one and 1 to the other and 0.
    let row = vec![2.0, 2.75, -5.0, BANNED, BANNED];
    assert_eq!(outcome, Outcome::Chose { row, token: 1 });
    assert_eq!(sequence.edits().len(), 5);
    assert_eq!(sequence.edits()[4], Edit::Deny { ids: vec![4] });
    let said = (log::Level::Info, "told of [3]".to_owned());
    assert_eq!(sequence.log(), [said]);
    assert!(sequence.plugin().0 == What::Edit);
}

#[test]
fn decisions_are_seen() {
    let row = [0.0; 5];
    assert_eq!(does("force").step(&[], &row), Outcome::Forced(vec![2, 1]));
    assert_eq!(does("stop").step(&[], &row), Outcome::Stopped);
}

#[test]
fn what_the_contract_forbids_fails_as_in_a_component() {
    for (what, kind, message) in [
        (
            "deny-all",
            "all_banned",
            "it banned the last token that was left",
        ),
        (
            "outside",
            "invalid_edit",
            "in `plan`, `allow` was given the id 99, the vocabulary has 5",
        ),
        (
            "force-twice",
            "invalid_decision",
            "in `plan`, `stop` was called after this call had decided already",
        ),
        (
            "read",
            "invalid_call",
            "in `plan`, `row` may be called in process, sample only",
        ),
        ("panic", "trap", "`plan` panicked: no 7"),
        ("fail", "error", "not today"),
    ] {
        assert_eq!(failure(what), (kind, message.to_owned()));
    }
    let mut sequence = does("overflow");
    let outcome = sequence.step(&[], &[f32::MAX; 5]);
    assert!(matches!(outcome, Outcome::Failed(failure) if failure.kind == "invalid_edit"));
}

#[test]
fn a_fault_ends_the_sequence_and_an_error_does_not() {
    let row = [0.0; 5];
    let mut sequence = does("panic");
    sequence.step(&[], &row);
    let outcome = sequence.step(&[1], &row);
    assert!(matches!(outcome, Outcome::Failed(failure) if failure.kind == "ended"));
    let mut sequence = does("fail");
    sequence.step(&[], &row);
    let outcome = sequence.step(&[1], &row);
    assert!(matches!(outcome, Outcome::Failed(failure) if failure.kind == "error"));
}

#[test]
fn a_row_that_no_model_gives_is_refused() {
    for (row, kind) in [
        (&[1.0, 2.0][..], "model_row"),
        (&[f32::NAN, 0.0, 0.0, 0.0, 0.0], "model_row"),
        (&[BANNED; 5], "all_banned"),
    ] {
        let outcome = does("edit").step(&[], row);
        assert!(matches!(outcome, Outcome::Failed(failure) if failure.kind == kind));
    }
}

#[test]
fn opening_fails_as_a_server_says_it() {
    let open = |params: &str| {
        let setup = Setup::new(5).params(params).prompt([3, 4]);
        let failure = setup.open::<Does>().err().unwrap();
        (failure.kind, failure.message)
    };
    let (kind, message) = open(r#"{"what": "sing"}"#);
    assert_eq!(kind, "invalid_params");
    assert!(message.starts_with("at `/what`: \"sing\""), "{message}");
    let (kind, message) = open(r#"{"what": "edit", "wat": 1}"#);
    assert_eq!(kind, "invalid_params");
    assert!(message.contains("wat"), "{message}");
    assert_eq!(open("{").0, "invalid_params");
    assert_eq!(
        open(r#"{"what": "refuse-params"}"#),
        ("invalid_params", "not these".to_owned())
    );
    assert_eq!(
        open(r#"{"what": "fail-to-open"}"#),
        ("open", "no more".to_owned())
    );
    assert_eq!(
        open(r#"{"what": "panic-in-open"}"#),
        ("trap", "`open` panicked: at [3, 4]".to_owned())
    );
}

#[test]
#[should_panic(
    expected = "it works inside a component, and in what `sluice_plugin::testing` calls"
)]
fn an_import_without_a_host_says_so() {
    edits::deny(&[1]);
}

/// Changes the row by what it reads of the vocabulary and the row.
struct Reads {
    ids: Vec<TokenId>,
    with_edits: bool,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ReadsParams {
    text: String,
    with_edits: bool,
}

impl Plugin for Reads {
    type Params = ReadsParams;

    fn describe() -> Description {
        description("reads")
    }

    fn open(params: ReadsParams, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let model = vocabulary::model();
        assert_eq!(model.end_of_sequence, sequence.end_ids);
        let (offsets, bytes) = vocabulary::all_token_bytes();
        assert_eq!(offsets, [0, 1, 3, 4, 5]);
        assert_eq!(bytes, b"abcb\n");
        assert_eq!(vocabulary::token_bytes(1), b"bc");
        assert_eq!(vocabulary::special_tokens(), [(3, "<end>".to_owned())]);
        let ids = vocabulary::encode(&params.text);
        Ok(Self {
            ids,
            with_edits: params.with_edits,
        })
    }
}

impl LogitsProcessor for Reads {
    fn process(&mut self, _: &[TokenId]) -> Result<Option<Vec<f32>>, String> {
        let mut row = logits::row();
        // ln(2 e⁰ + e¹ + e^½) at temperature 2.
        let sum = logits::log_sum_exp(2.0);
        let expected = (2.0 + std::f64::consts::E + 0.5_f64.exp()).ln();
        assert!((sum - expected).abs() < 1e-6);
        assert_eq!(logits::top(2).ids, [2, 1]);
        for &id in &self.ids {
            row[id as usize] += 10.0;
        }
        if self.with_edits {
            edits::deny(&[0]);
        }
        Ok(Some(row))
    }
}

export!(LogitsProcessor for Reads);

fn reads(params: &str) -> Outcome {
    let setup = Setup::of_texts(["a", "bc", "b", "\n"])
        .special_token(3, "<end>")
        .end_ids([3])
        .params(params);
    let mut sequence = setup.open::<Reads>().unwrap();
    sequence.step(&[], &[0.0, 1.0, 2.0, 0.0])
}

#[test]
fn a_new_row_takes_the_place_of_the_old_one() {
    let row = vec![10.0, 1.0, 12.0, 0.0];
    assert_eq!(
        reads(r#"{"text": "bac"}"#),
        Outcome::Chose { row, token: 2 }
    );
    let outcome = reads(r#"{"with_edits": true}"#);
    assert!(matches!(outcome, Outcome::Failed(failure) if failure.kind == "invalid_edit"));
}

/// Takes the token at a draw.
struct Draws;

impl Plugin for Draws {
    type Params = ();

    fn describe() -> Description {
        description("draws")
    }

    fn open((): (), _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self)
    }
}

impl Sampler for Draws {
    fn sample(&mut self, _: &[TokenId]) -> Result<TokenId, String> {
        Ok((random::uniform(0) * 1000.0) as TokenId)
    }
}

export!(Sampler for Draws);

/// The published numbers of the contract: seeds 0 and 42, positions 0 and 1.
#[test]
fn chance_is_that_of_the_server() {
    let row = [0.0; 1000];
    let draw = |seed, accepted: &[TokenId], choice| {
        let setup = Setup::new(1000).params("null").seed(seed).choice(choice);
        match setup.open::<Draws>().unwrap().step(accepted, &row) {
            Outcome::Chose { token, .. } => token,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(draw(0, &[], 0), 399);
    assert_eq!(draw(42, &[], 0), 612);
    assert_eq!(draw(42, &[5], 0), 987);
    assert_eq!(draw(42, &[], 1), 261);
}

#[test]
fn a_sampler_may_not_choose_what_is_banned() {
    let mut sequence = Setup::new(400).params("null").open::<Draws>().unwrap();
    let mut row = [0.0; 400];
    row[399] = BANNED;
    let outcome = sequence.step(&[], &row);
    assert!(matches!(outcome, Outcome::Failed(failure) if failure.kind == "banned_token"));
    let mut sequence = Setup::new(9).params("null").open::<Draws>().unwrap();
    let outcome = sequence.step(&[], &[0.0; 9]);
    assert!(matches!(outcome, Outcome::Failed(failure) if failure.kind == "banned_token"));
}

#[test]
fn cases_hold() {
    testing::cases::<Does>(
        r#"[{"id": "forced", "params": {"what": "force"}, "logits": [1, 2, 3],
             "expected_decision": {"force": [2, 1]}},
            {"id": "no such", "params": {"what": "sing"}, "logits": [1],
             "expected_error": "invalid_params"},
            {"id": "it panics", "params": {"what": "panic"}, "logits": [1],
             "expected_error": "trap"}]"#,
    );
}

#[test]
#[should_panic(expected = "2 of 3 cases do not hold:
  a row: the logit of token 1 is 2.75, 3 is expected
  none: it fails with invalid_params: at `/what`")]
fn a_case_that_does_not_hold_is_named() {
    testing::cases::<Does>(
        r#"[{"id": "a row", "params": {"what": "edit"}, "logits": [1, 4, -3, 9, 2],
             "expected_logits": [2, 3, -5, "-inf", "-inf"]},
            {"id": "holds", "params": {"what": "stop"}, "logits": [1],
             "expected_decision": "stop"},
            {"id": "none", "params": {"what": 5}, "logits": [1], "expected_token": 0}]"#,
    );
}

#[test]
#[should_panic(expected = "the cases are not what they should be: unknown field `token`")]
fn a_file_that_is_no_list_of_cases_is_refused() {
    testing::cases::<Does>(r#"[{"id": "it", "token": 1}]"#);
}
