use serde_json::json;

use super::*;

const BANNED: f32 = f32::NEG_INFINITY;

/// A case of three tokens with what is expected, and why it does not hold.
fn checked(expected: &Value, kind: Kind, outcome: &Outcome) -> Result<(), String> {
    let mut case = json!({"id": "it", "logits": [1, 2, "-inf"], "generated_tokens": [1, 0]});
    for (name, value) in expected.as_object().unwrap() {
        case[name] = value.clone();
    }
    let cases = parse(&json!([case]).to_string()).unwrap();
    cases[0].check(kind, || Ok(()), |(), _, _| outcome.clone())
}

fn chose(row: [f32; 3], token: TokenId) -> Outcome {
    let row = row.to_vec();
    Outcome::Chose { row, token }
}

#[test]
fn what_is_as_expected_holds() {
    let token = Kind::TokenProcessor;
    let row = chose([1.0, 2.000_01, BANNED], 1);
    for expected in [
        json!({"expected_logits": [1, 2, "-inf"]}),
        json!({"kept_ids": [0, 1]}),
        json!({"expected_token": 1}),
    ] {
        assert_eq!(checked(&expected, token, &row), Ok(()), "{expected}");
    }
    let forced = Outcome::Forced(vec![2, 0]);
    let expected = json!({"expected_decision": {"force": [2, 0]}});
    assert_eq!(checked(&expected, token, &forced), Ok(()));
    let expected = json!({"expected_decision": "stop"});
    assert_eq!(checked(&expected, token, &Outcome::Stopped), Ok(()));
    let failed = Outcome::Failed(Failure::new("all_banned", "it banned all"));
    let expected = json!({"expected_error": "all_banned"});
    assert_eq!(checked(&expected, token, &failed), Ok(()));
}

#[test]
fn what_is_not_says_what_was_found_and_what_was_wanted() {
    let token = Kind::TokenProcessor;
    let row = chose([1.0, 2.0, BANNED], 1);
    let failed = Outcome::Failed(Failure::new("trap", "it panicked"));
    for (expected, outcome, why) in [
        (
            json!({"expected_logits": [1, 2.1, "-inf"]}),
            &row,
            "the logit of token 1 is 2, 2.1 is expected",
        ),
        (
            json!({"expected_logits": [1, 2, 3]}),
            &row,
            "the logit of token 2 is -inf, 3 is expected",
        ),
        (
            json!({"expected_logits": [1, 2]}),
            &row,
            "expected_logits has 2 values, the row 3",
        ),
        (
            json!({"kept_ids": [0]}),
            &row,
            "[0, 1] are kept, [0] is expected",
        ),
        (
            json!({"expected_token": 0}),
            &row,
            "the token is 1, 0 is expected",
        ),
        (
            json!({"expected_decision": "stop"}),
            &row,
            "it decides nothing; expected is that it stops",
        ),
        (
            json!({"expected_token": 1}),
            &Outcome::Forced(vec![1]),
            "it forces [1]; expected is that it decides nothing",
        ),
        (
            json!({"expected_error": "trap"}),
            &Outcome::Stopped,
            "it does not fail",
        ),
        (
            json!({"expected_error": "memory"}),
            &failed,
            "the error memory is expected, it fails with trap: it panicked",
        ),
        (
            json!({"expected_token": 1}),
            &failed,
            "it fails with trap: it panicked",
        ),
        (json!({}), &row, "it expects nothing"),
        (
            json!({"expected_token": 1, "prompt_tokens": [3]}),
            &row,
            "the token 3 is not below the row's width 3",
        ),
        (
            json!({"expected_token": 1, "tokens": ["a"]}),
            &row,
            "1 tokens have a text, not 3",
        ),
        (
            json!({"expected_token": 1, "logits": []}),
            &row,
            "it has 0 logits, not 1 to 262144",
        ),
    ] {
        assert_eq!(checked(&expected, token, outcome), Err(why.to_owned()));
    }
    let expected = json!({"kept_ids": [1]});
    assert!(checked(&expected, Kind::Sampler, &row).is_err());
}

/// A processor that forgets which calls it had is found out.
#[test]
fn a_token_processor_is_told_at_once_and_one_by_one() {
    let text = r#"[{"id": "it", "logits": [0, 0], "generated_tokens": [1, 0],
                    "expected_logits": [2, 0]}]"#;
    let case = &parse(text).unwrap()[0];
    let ask = |calls: &mut Vec<usize>, accepted: &[TokenId], row: &[f32]| {
        calls.push(accepted.len());
        let mut row = row.to_vec();
        row[0] += accepted.len() as f32;
        Outcome::Chose { row, token: 0 }
    };
    let why = case.check(Kind::TokenProcessor, || Ok(Vec::new()), ask);
    let expected = "the logit of token 0 is 1, 2 is expected, told one by one";
    assert_eq!(why, Err(expected.to_owned()));
    assert_eq!(
        case.check(Kind::LogitsProcessor, || Ok(Vec::new()), ask),
        Ok(())
    );
}

#[test]
fn a_file_that_is_no_list_of_cases_names_the_place() {
    let error = parse(r#"[{"id": "it", "logits": [1], "wanted": 1}]"#).unwrap_err();
    assert!(
        error.to_string().contains("unknown field `wanted`"),
        "{error}"
    );
    assert!(parse("{}").is_err());
}

#[test]
fn infinities_are_close_to_themselves_alone() {
    assert!(is_close(BANNED, BANNED));
    assert!(!is_close(BANNED, f32::MIN) && !is_close(0.0, BANNED));
    assert!(is_close(1e6, 1e6 + 9.0) && !is_close(1e6, 1e6 + 11.0));
    assert!(is_close(0.0, 1e-5) && !is_close(0.0, 1.1e-5));
    assert!(!is_close(0.0, f32::NAN));
}
