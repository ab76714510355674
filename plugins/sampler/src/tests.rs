use serde_json::Value;

use sluice_plugin::testing;

use super::{Params, Truncating};

fn schema() -> Value {
    sluice_plugin::schema::<Params>()
}

/// The schema is what people read; the parameters are what runs.
#[test]
fn every_parameter_of_the_schema_is_known_and_its_default_is_off() {
    let properties = schema()["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    assert_eq!(properties.len(), 17);
    let defaults = properties
        .iter()
        .map(|(name, property)| (name.clone(), property["default"].clone()));
    let params: Params = serde_json::from_value(Value::Object(defaults.collect()))
        .unwrap_or_else(|error| panic!("{error}"));
    let order = params.order.clone();
    assert_eq!(
        Params {
            order: None,
            ..params
        },
        Params::default()
    );
    let names = sluice_plugin::sampling::Stage::DEFAULT_ORDER.map(|stage| stage.name().to_owned());
    assert_eq!(order, Some(names.to_vec()));
}

#[test]
fn every_name_that_the_schema_allows_is_a_stage() {
    let names = schema()["properties"]["order"]["items"]["enum"].clone();
    for name in names.as_array().into_iter().flatten() {
        let order = Some(vec![name.as_str().unwrap_or_default().to_owned()]);
        let params = Params {
            order,
            ..Params::default()
        };
        assert!(
            sluice_plugin::sampling::Pipeline::new(params, &[], 8).is_ok(),
            "{name}"
        );
    }
}

#[test]
fn params_are_held_to_their_ranges() {
    testing::params::<Truncating>(
        &[
            "{}",
            r#"{"temperature": 0, "dynatemp_range": 100, "dynatemp_exponent": 100}"#,
            r#"{"temperature": 100, "smoothing_factor": 1e9, "smoothing_curve": 3}"#,
            r#"{"top_n_sigma": -5}"#,
            r#"{"top_n_sigma": 100}"#,
            r#"{"typical_p": 0.001}"#,
            r#"{"typical_p": 1}"#,
            r#"{"top_k": -1}"#,
            r#"{"top_k": 2147483647}"#,
            r#"{"top_p": 0}"#,
            r#"{"epsilon_cutoff": 0.999, "eta_cutoff": 0.999}"#,
            r#"{"top_a": 1, "min_p": 1, "xtc_probability": 1, "xtc_threshold": 1}"#,
            r#"{"min_keep": 8}"#,
            r#"{"order": ["typ_p", "xtc"]}"#,
        ],
        &[
            r#"{"temperature": -0.1}"#,
            r#"{"temperature": 100.1}"#,
            r#"{"dynatemp_range": -1}"#,
            r#"{"dynatemp_exponent": 101}"#,
            r#"{"smoothing_factor": -1}"#,
            r#"{"smoothing_curve": 0.9}"#,
            r#"{"smoothing_curve": 3.1}"#,
            r#"{"top_n_sigma": 101}"#,
            r#"{"typical_p": 0}"#,
            r#"{"typical_p": 1.1}"#,
            r#"{"top_k": -2}"#,
            r#"{"top_k": 2147483648}"#,
            r#"{"top_k": 1.5}"#,
            r#"{"top_p": -0.1}"#,
            r#"{"top_p": 1.1}"#,
            r#"{"epsilon_cutoff": 1}"#,
            r#"{"eta_cutoff": 1}"#,
            r#"{"top_a": 1.1}"#,
            r#"{"min_p": -0.1}"#,
            r#"{"xtc_probability": 1.1}"#,
            r#"{"xtc_threshold": -0.1}"#,
            r#"{"min_keep": 0}"#,
            r#"{"min_keep": 4294967296}"#,
            r#"{"order": ["heat"]}"#,
            r#"{"order": ["xtc", "xtc"]}"#,
            r#"{"order": null}"#,
            r#"{"heat": 1}"#,
        ],
    );
}
