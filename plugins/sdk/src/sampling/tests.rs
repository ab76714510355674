use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Params, Pipeline, Stage};
use crate::TokenId;

/// What is kept, by id, with its logit; xtc fires whenever its probability is
/// above 0.
fn kept(params: &Params, end_ids: &[TokenId], logits: &[f32]) -> Vec<(TokenId, f64)> {
    let pipeline = Pipeline::new(params.clone(), end_ids, logits.len());
    let kept = pipeline.map(|pipeline| pipeline.kept(logits, &|_| 0.0));
    let mut pairs: Vec<_> = match kept {
        Ok(Some(mut kept)) => kept.ids().into_iter().zip(kept.logits()).collect(),
        Ok(None) => Vec::new(),
        Err(refused) => panic!("{refused}"),
    };
    pairs.sort_by_key(|pair| pair.0);
    pairs
}

fn kept_ids(params: &Params, logits: &[f32]) -> Vec<TokenId> {
    let pairs = kept(params, &[], logits);
    pairs.into_iter().map(|(id, _)| id).collect()
}

/// Sets the parameters of a worked vector's step under a request's names.
fn set_fields(fields: &mut Value, op: &str, step: &Value) {
    for (name, value) in step.as_object().into_iter().flatten() {
        let field = match (op, name.as_str()) {
            ("top_k", "k") => "top_k",
            ("top_p", "p") => "top_p",
            ("typical", "p") => "typical_p",
            ("top_n_sigma", "n") => "top_n_sigma",
            ("xtc", "threshold") => "xtc_threshold",
            ("xtc", "probability") => "xtc_probability",
            ("dynamic_temperature", "range") => "dynatemp_range",
            ("dynamic_temperature", "exponent") => "dynatemp_exponent",
            ("epsilon", "epsilon") => "epsilon_cutoff",
            ("eta", "epsilon") => "eta_cutoff",
            ("top_a", "a") => "top_a",
            (_, "op" | "end_ids" | "uniform") => continue,
            (_, same) => same,
        };
        fields[field] = value.clone();
    }
}

/// The parameters of a vector, if its steps are all stages of a sampler.
fn params(op: &str, params: &Value) -> Option<Params> {
    const OPS: [&str; 14] = [
        "temperature",
        "dynamic_temperature",
        "quadratic",
        "top_n_sigma",
        "typical",
        "top_k",
        "top_p",
        "epsilon",
        "eta",
        "top_a",
        "min_p",
        "xtc",
        "select",
        "draw",
    ];
    let mut fields = json!({});
    if op == "chain" {
        let mut order = Vec::new();
        for step in params["steps"].as_array()? {
            let name = step["op"].as_str()?;
            OPS.contains(&name).then_some(())?;
            set_fields(&mut fields, name, step);
            order.push(name);
        }
        fields["order"] = json!(order);
    } else {
        OPS.contains(&op).then_some(())?;
        set_fields(&mut fields, op, params);
    }
    serde_json::from_value(fields).ok()
}

fn ids(value: &Value) -> Vec<TokenId> {
    let ids = value.as_array().into_iter().flatten();
    ids.filter_map(Value::as_u64)
        .map(|id| id as TokenId)
        .collect()
}

fn row(value: &Value) -> Vec<f32> {
    let logits = value.as_array().into_iter().flatten();
    logits
        .map(|l| l.as_f64().map_or(f32::NEG_INFINITY, |l| l as f32))
        .collect()
}

#[track_caller]
fn check(id: &Value, vector: &Value, params: &Params) {
    let logits = row(&vector["logits"]);
    let end_ids = ids(&vector["params"]["end_ids"]);
    let kept = kept(params, &end_ids, &logits);
    if vector["kept_ids"].is_array() {
        let kept: Vec<_> = kept.iter().map(|pair| pair.0).collect();
        assert_eq!(kept, ids(&vector["kept_ids"]), "{id}");
    }
    if vector["expected_logits"].is_array() {
        let expected = (0..).zip(row(&vector["expected_logits"]));
        let expected: Vec<_> = expected.filter(|pair| pair.1 > f32::NEG_INFINITY).collect();
        assert_eq!(kept.len(), expected.len(), "{id}");
        for (kept, expected) in kept.iter().zip(expected) {
            let expected = (expected.0, f64::from(expected.1));
            let close = (kept.1 - expected.1).abs() <= 1e-5 * expected.1.abs().max(1.0);
            assert!(
                kept.0 == expected.0 && close,
                "{id}: {kept:?}, not {expected:?}"
            );
        }
    }
    if let Some(token) = vector["expected_token"].as_u64() {
        let u = vector["params"]["uniform"].as_f64().unwrap_or(0.5);
        let pipeline = Pipeline::new(params.clone(), &end_ids, logits.len());
        let chosen = pipeline.map(|pipeline| pipeline.choose(&logits[..], &|_| u));
        assert_eq!(chosen, Ok(Some(token as TokenId)), "{id}");
    }
    if vector["expected_error"] == "all_masked" {
        assert_eq!(kept, [], "{id}");
    }
}

#[test]
fn worked_vectors() {
    let all: Value =
        serde_json::from_str(include_str!("../../../../tests/vectors.json")).unwrap_or_default();
    let mut checked = 0;
    for vector in all["vectors"].as_array().into_iter().flatten() {
        let op = vector["op"].as_str().unwrap_or_default();
        if let Some(params) = params(op, &vector["params"]) {
            check(&vector["id"], vector, &params);
            checked += 1;
        }
    }
    assert_eq!(checked, 59);
}

#[test]
fn greedy_skips_truncation_and_takes_the_lowest_id_of_equals() {
    let params = Params {
        temperature: 0.000_009,
        dynatemp_range: 1.0,
        xtc_probability: 1.0,
        min_keep: 2,
        ..Params::default()
    };
    assert_eq!(kept_ids(&params, &[1.0, 3.0, 3.0]), [1]);
}

#[test]
fn xtc_leaves_min_keep_tokens() {
    let params = Params {
        xtc_probability: 1.0,
        xtc_threshold: 0.25,
        min_keep: 2,
        ..Params::default()
    };
    assert_eq!(kept_ids(&params, &[0.0; 4]), [0, 1, 2, 3]);
}

#[test]
fn of_equal_typical_tokens_the_lowest_ids_are_kept() {
    // ¼ thrice and two of ⅛: H is 1¾ ln 2, so the four bits of each quarter
    // stand ¼ ln 2 away and each eighth 1¼ ln 2.
    let quarter = 0.25_f32.ln();
    let eighth = 0.125_f32.ln();
    let row = [eighth, quarter, quarter, eighth, quarter];
    let typical_p = |typical_p| Params {
        typical_p,
        ..Params::default()
    };
    assert_eq!(kept_ids(&typical_p(0.2), &row), [1]);
    assert_eq!(kept_ids(&typical_p(0.45), &row), [1, 2]);
    assert_eq!(kept_ids(&typical_p(0.7), &row), [1, 2, 4]);
    assert_eq!(kept_ids(&typical_p(0.8), &row), [0, 1, 2, 4]);
}

#[test]
fn equal_tokens_that_xtc_dropped_count_no_more() {
    // 300 equal tokens: more than are read at first. All but the last of
    // those read reach the threshold exactly, or none does.
    let row = [1.5_f32; 300];
    let params = Params {
        xtc_probability: 1.0,
        xtc_threshold: 0.003,
        ..Params::default()
    };
    assert_eq!(kept_ids(&params, &row), [299]);
}

#[test]
fn rows_of_the_largest_numbers_are_as_any_other() {
    let row = [f32::MIN, 3e38, f32::NEG_INFINITY, 3e38, f32::MAX];
    let on = Params {
        top_p: 0.5,
        ..Params::default()
    };
    assert_eq!(kept_ids(&on, &row), [4]);
    let on = Params {
        temperature: 0.5,
        dynatemp_range: 0.25,
        smoothing_factor: 1e30,
        smoothing_curve: 3.0,
        top_n_sigma: 1.0,
        typical_p: 0.9,
        eta_cutoff: 0.5,
        top_a: 1.0,
        ..Params::default()
    };
    assert_eq!(kept_ids(&on, &row), [4]);
}

/// The definitions, one after another, on all tokens at once.
mod definitions {
    use super::{Params, Stage, TokenId};

    type Tokens = Vec<(TokenId, f64)>;

    fn probabilities(tokens: &Tokens) -> Vec<f64> {
        let max = tokens.iter().map(|t| t.1).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<_> = tokens.iter().map(|t| (t.1 - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    fn entropy(p: &[f64]) -> f64 {
        -p.iter()
            .filter(|&&p| p > 0.0)
            .map(|p| p * p.ln())
            .sum::<f64>()
    }

    /// The tokens for which `passes` holds, which are a head.
    fn head(tokens: &Tokens, min_keep: usize, passes: impl Fn(usize) -> bool) -> Tokens {
        let n = (0..tokens.len()).filter(|&rank| passes(rank)).count();
        tokens[..n.max(min_keep).min(tokens.len())].to_vec()
    }

    fn tempered(tokens: &Tokens, params: &Params) -> Tokens {
        let mut t = f64::from(params.temperature);
        if params.dynatemp_range > 0.0 && tokens.len() == 1 {
            t = 1.0;
        } else if params.dynatemp_range > 0.0 {
            let share = entropy(&probabilities(tokens)) / (tokens.len() as f64).ln();
            let low = (t - params.dynatemp_range).max(0.0);
            let high = t + params.dynatemp_range;
            t = low + (high - low) * share.powf(params.dynatemp_exponent);
        }
        if t < 1e-5 {
            return tokens[..1].to_vec();
        }
        let mut tokens: Tokens = tokens.iter().map(|&(id, l)| (id, l / t)).collect();
        if params.smoothing_factor > 0.0 {
            let max = tokens[0].1;
            let (f, c) = (params.smoothing_factor, params.smoothing_curve);
            for (_, l) in &mut tokens {
                let d = *l - max;
                *l = max - (3.0 - c) / 2.0 * f * d.powi(2) + (c - 1.0) / 2.0 * f * d.powi(3);
            }
        }
        tokens
    }

    fn typical(tokens: &Tokens, params: &Params) -> Tokens {
        let p = probabilities(tokens);
        let h = entropy(&p);
        let mut order: Vec<_> = (0..p.len()).collect();
        let away = |rank: usize| (-p[rank].ln() - h).abs();
        order.sort_by(|&a, &b| away(a).total_cmp(&away(b)).then(a.cmp(&b)));
        let mut mass = 0.0;
        let mut kept: Vec<_> = Vec::new();
        for rank in order {
            if mass >= params.typical_p && kept.len() >= params.min_keep {
                break;
            }
            mass += p[rank];
            kept.push(rank);
        }
        kept.sort_unstable();
        kept.into_iter().map(|rank| tokens[rank]).collect()
    }

    fn xtc(tokens: &Tokens, params: &Params, end_ids: &[TokenId]) -> Tokens {
        let p = probabilities(tokens);
        let choices = p.iter().filter(|&&p| p >= params.xtc_threshold).count();
        let goes = choices.saturating_sub(1);
        let ends = tokens[..goes].iter().any(|(id, _)| end_ids.contains(id));
        if ends || tokens.len() - goes < params.min_keep {
            return tokens.clone();
        }
        tokens[goes..].to_vec()
    }

    fn applied(stage: Stage, tokens: &Tokens, params: &Params, end_ids: &[TokenId]) -> Tokens {
        let p = probabilities(tokens);
        let min_keep = params.min_keep;
        let best = tokens[0].1;
        match stage {
            Stage::Temperature => tempered(tokens, params),
            Stage::TopNSigma if params.top_n_sigma > 0.0 => {
                let n = tokens.len() as f64;
                let mean = tokens.iter().map(|t| t.1).sum::<f64>() / n;
                let variance = tokens.iter().map(|t| (t.1 - mean).powi(2)).sum::<f64>() / n;
                let cut = best - params.top_n_sigma * variance.sqrt();
                head(tokens, min_keep, |rank| tokens[rank].1 >= cut)
            }
            Stage::Typical if params.typical_p < 1.0 => typical(tokens, params),
            Stage::TopK if params.top_k > 0 => {
                head(tokens, min_keep, |rank| rank < params.top_k as usize)
            }
            Stage::TopP if params.top_p < 1.0 => head(tokens, min_keep, |rank| {
                p[..rank].iter().sum::<f64>() < params.top_p
            }),
            Stage::Epsilon => head(tokens, min_keep, |rank| p[rank] >= params.epsilon_cutoff),
            Stage::Eta => {
                let epsilon = params.eta_cutoff;
                let cut = epsilon.min(epsilon.sqrt() * (-entropy(&p)).exp());
                head(tokens, min_keep, |rank| p[rank] >= cut)
            }
            Stage::TopA => head(tokens, min_keep, |rank| {
                p[rank] >= params.top_a * p[0] * p[0]
            }),
            Stage::MinP => head(tokens, min_keep, |rank| {
                tokens[rank].1 >= best + params.min_p.ln()
            }),
            Stage::Xtc if params.xtc_probability > 0.0 => xtc(tokens, params, end_ids),
            _ => tokens.clone(),
        }
    }

    pub(super) fn kept(params: &Params, end_ids: &[TokenId], logits: &[f32]) -> Tokens {
        let all = (0..).zip(logits.iter().map(|&l| f64::from(l)));
        let mut tokens: Tokens = all.filter(|t| t.1 > f64::NEG_INFINITY).collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let names = params.order.iter().flatten();
        for name in names {
            let stage = Stage::DEFAULT_ORDER
                .into_iter()
                .find(|stage| stage.name() == name);
            if let Some(stage) = stage.filter(|_| !tokens.is_empty()) {
                tokens = applied(stage, &tokens, params, end_ids);
            }
        }
        tokens.sort_by_key(|t| t.0);
        tokens
    }
}

fn off_or<T: Clone + std::fmt::Debug + 'static>(
    off: T,
    on: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<T> {
    prop_oneof![2 => Just(off), 1 => on].boxed()
}

prop_compose! {
    fn tempering()(
        temperature in 0.2..4.0_f32,
        dynatemp_range in off_or(0.0, 0.0..2.0),
        dynatemp_exponent in 0.5..3.0,
        smoothing_factor in off_or(0.0, 0.01..0.5),
        smoothing_curve in 1.0..3.0,
    ) -> Params {
        Params {
            temperature,
            dynatemp_range,
            dynatemp_exponent,
            smoothing_factor,
            smoothing_curve,
            ..Params::default()
        }
    }
}

prop_compose! {
    fn any_params()(
        tempering in tempering(),
        top_n_sigma in off_or(0.0, 0.1..4.0),
        typical_p in off_or(1.0, 0.05..1.0),
        top_k in off_or(0, 1..400_i64),
        top_p in off_or(1.0, 0.0..1.0),
        epsilon_cutoff in off_or(0.0, 0.0..0.2),
        eta_cutoff in off_or(0.0, 0.0..0.2),
        top_a in off_or(0.0, 0.0..1.0),
        min_p in off_or(0.0, 0.001..0.5),
        xtc in (off_or(0.0, Just(1.0)), 0.001..0.3),
        min_keep in off_or(1, 1..20_usize),
        order in Just(Stage::DEFAULT_ORDER.map(|stage| stage.name().to_owned()).to_vec())
            .prop_shuffle(),
    ) -> Params {
        Params {
            top_n_sigma,
            typical_p,
            top_k,
            top_p,
            epsilon_cutoff,
            eta_cutoff,
            top_a,
            min_p,
            xtc_probability: xtc.0,
            xtc_threshold: xtc.1,
            min_keep,
            order: Some(order),
            ..tempering
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Also: a token that is kept was not banned, and one always is.
    #[test]
    fn reads_as_much_of_the_row_as_the_definitions_need(
        params in any_params(),
        logits in prop::collection::vec(
            prop_oneof![8 => (-30..30_i8).prop_map(|l| f32::from(l) / 7.0), 1 => Just(f32::NEG_INFINITY)],
            20..400,
        ),
        end in 0..20_u32,
    ) {
        let kept = kept(&params, &[end], &logits);
        let expected = definitions::kept(&params, &[end], &logits);
        let ids = |tokens: &[(TokenId, f64)]| tokens.iter().map(|t| t.0).collect::<Vec<_>>();
        prop_assert_eq!(ids(&kept), ids(&expected));
        for (kept, expected) in kept.iter().zip(&expected) {
            let error = (kept.1 - expected.1).abs();
            prop_assert!(error <= 1e-5 * expected.1.abs().max(1.0), "{kept:?} {expected:?}");
        }
        prop_assert!(kept.iter().all(|t| logits[t.0 as usize] > f32::NEG_INFINITY));
        let free = logits.iter().filter(|l| **l > f32::NEG_INFINITY).count();
        if params.dynatemp_range == 0.0 {
            prop_assert!(kept.len() >= params.min_keep.min(free));
        }
        prop_assert!(!kept.is_empty() || free == 0);
    }

    /// The masses that a draw goes by are those of the kept logits.
    #[test]
    fn draws_by_the_kept_logits(
        params in any_params(),
        logits in prop::collection::vec(-4.0..4.0_f32, 20..400),
        u in 0.0..1.0,
    ) {
        let pipeline = Pipeline::new(params, &[], logits.len()).unwrap();
        let mut kept = pipeline.kept(&logits[..], &|_| 0.0).unwrap();
        let rank = kept.draw(u).unwrap();
        let weights: Vec<_> = kept.logits().iter().map(|l| (l - kept.logits()[0]).exp()).collect();
        let total: f64 = weights.iter().sum();
        let before: f64 = weights[..rank].iter().sum();
        prop_assert!(before <= u * total + 1e-5 * total);
        prop_assert!(before + weights[rank] >= u * total - 1e-5 * total);
    }
}
