use proptest::prelude::*;
use serde_json::Value;
use sluice_plugin::{TokenId, ranking::Ranking, testing};

use super::{Bound, Mirostat, Params};

fn row(value: &Value) -> Vec<f32> {
    let logits = value.as_array().into_iter().flatten();
    logits
        .filter_map(|l| l.as_f64().map(|l| l as f32))
        .collect()
}

fn number(params: &Value, name: &str) -> Option<f64> {
    params[name].as_f64()
}

#[test]
fn worked_vectors() {
    let all: Value =
        serde_json::from_str(include_str!("../../../tests/vectors.json")).unwrap_or_default();
    let vectors = all["vectors"].as_array().cloned().unwrap_or_default();
    let mut checked = 0;
    for vector in vectors.iter().filter(|each| each["op"] == "mirostat_step") {
        let (id, params) = (&vector["id"], &vector["params"]);
        let logits = row(&vector["logits"]);
        let mut bound = Bound {
            mu: number(params, "mu").unwrap_or(f64::NAN),
            ..Bound::new(
                number(params, "tau").unwrap_or(5.0),
                number(params, "eta").unwrap_or(0.1),
            )
        };
        let mut ranking = Ranking::new(&logits[..]);
        let kept = bound.kept(&mut ranking);
        ranking.keep(kept);
        if let Some(expected) = vector["kept_ids"].as_array() {
            assert_eq!(ranking.ids().len(), expected.len(), "{id}");
            for (id, expected) in ranking.ids().iter().zip(expected) {
                assert_eq!(Some(u64::from(*id)), expected.as_u64());
            }
        }
        if let Some(token) = params["token"].as_u64() {
            let rank = ranking.ids().iter().position(|&id| u64::from(id) == token);
            bound.follow(ranking.ratio(rank.unwrap_or(usize::MAX)) / ranking.total());
            let expected = number(vector, "expected_mu").unwrap_or(f64::NAN);
            assert!((bound.mu - expected).abs() < 1e-5, "{id}: {}", bound.mu);
        }
        checked += 1;
    }
    assert_eq!(checked, 2);
}

fn mirostat(params: &Params, vocabulary_size: usize) -> Mirostat {
    Mirostat::new(params, vocabulary_size).unwrap_or_else(|refused| panic!("{refused}"))
}

fn mu(mirostat: &Mirostat) -> Option<f64> {
    mirostat.bound.map(|bound| bound.mu)
}

#[test]
fn the_bound_follows_from_draw_to_draw() {
    // ½, ¼, ⅛, ⅛ surprise by 1, 2, 3, 3 bits. τ = 1.1: the bound is 2.2, so
    // two are kept, ⅔ and ⅓.
    let row: Vec<f32> = [0.5_f32, 0.25, 0.125, 0.125].map(f32::ln).to_vec();
    let params = Params {
        mirostat_tau: 1.1,
        mirostat_eta: 1.0,
        ..Params::default()
    };
    let mut mirostat = mirostat(&params, 4);
    assert_eq!(mu(&mirostat), Some(2.2));
    assert_eq!(mirostat.choose(&row[..], 0.7), Some(1));
    // log₂ 3 = 1.585: the bound falls to 1.715, and only the best is kept,
    // which surprises by nothing: up to 2.815.
    let after = mu(&mirostat).unwrap_or(f64::NAN);
    assert!((after - (3.3 - 3_f64.log2())).abs() < 1e-6, "{after}");
    assert_eq!(mirostat.choose(&row[..], 0.99), Some(0));
    let after = mu(&mirostat).unwrap_or(f64::NAN);
    assert!((after - (4.4 - 3_f64.log2())).abs() < 1e-6, "{after}");
    assert_eq!(mirostat.choose(&row[..], 0.7), Some(1));
}

#[test]
fn temperature_comes_first() {
    // At T = ½, ⅔ and ⅓ are 4 to 1: 0.32 and 2.32 bits.
    let row = [2_f32.ln(), 0.0];
    let params = |temperature| Params {
        temperature,
        mirostat_tau: 1.1,
        ..Params::default()
    };
    let chosen = |temperature| mirostat(&params(temperature), 2).choose(&row[..], 0.99);
    assert_eq!(chosen(1.0), Some(1));
    assert_eq!(chosen(0.5), Some(0));
}

#[test]
fn temperature_0_takes_the_best_and_0_draws_from_all() {
    let row = [0.0, 1.0, f32::NEG_INFINITY, 1.0];
    let greedy = Params {
        temperature: 0.0,
        ..Params::default()
    };
    assert_eq!(mirostat(&greedy, 4).choose(&row[..], 0.99), Some(1));
    let off = Params {
        mirostat: 0,
        mirostat_tau: 1e-9,
        ..Params::default()
    };
    assert_eq!(mirostat(&off, 4).choose(&row[..], 0.99), Some(0));
    let on = Params { mirostat: 2, ..off };
    assert_eq!(mirostat(&on, 4).choose(&row[..], 0.99), Some(1));
}

#[test]
fn version_1_is_refused_and_nothing_is_drawn_where_all_is_banned() {
    let first = Params {
        mirostat: 1,
        ..Params::default()
    };
    let refused = Mirostat::new(&first, 4).err();
    assert_eq!(refused.as_deref(), Some("mirostat is 1; it may be 0 or 2"));
    let banned: [f32; 3] = [f32::NEG_INFINITY; 3];
    let chosen: Option<TokenId> = mirostat(&Params::default(), 3).choose(&banned[..], 0.0);
    assert_eq!(chosen, None);
}

proptest! {
    #[test]
    fn a_banned_token_is_never_drawn_and_the_bound_stays_finite(
        rows in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![4 => -30.0..30.0_f32, 1 => Just(f32::NEG_INFINITY)], 1..90,
            ),
            1..20,
        ),
        (tau, eta) in (0.001..20.0, 0.01..1.0),
        u in 0.0..1.0,
    ) {
        let params = Params { mirostat_tau: tau, mirostat_eta: eta, ..Params::default() };
        let mut mirostat = mirostat(&params, 90);
        for row in rows {
            let free = row.iter().any(|l| *l > f32::NEG_INFINITY);
            let chosen = mirostat.choose(&row[..], u);
            prop_assert_eq!(chosen.is_some(), free);
            prop_assert!(chosen.is_none_or(|id| row[id as usize] > f32::NEG_INFINITY));
            prop_assert!(mu(&mirostat).is_some_and(f64::is_finite));
        }
    }
}

#[test]
fn params_are_held_to_their_ranges() {
    testing::params::<Mirostat>(
        &[
            "{}",
            r#"{"temperature": 0}"#,
            r#"{"temperature": 100}"#,
            r#"{"mirostat": 0}"#,
            r#"{"mirostat": 2}"#,
            r#"{"mirostat_tau": 1e300, "mirostat_eta": 1}"#,
            r#"{"mirostat_tau": 0.001}"#,
        ],
        &[
            r#"{"temperature": -0.1}"#,
            r#"{"temperature": 100.1}"#,
            r#"{"mirostat": 1}"#,
            r#"{"mirostat_tau": 0}"#,
            r#"{"mirostat_eta": 0}"#,
            r#"{"mirostat_eta": 1.1}"#,
            r#"{"tau": 1}"#,
        ],
    );
}
