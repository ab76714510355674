use serde_json::Value;

use super::{Params, Plugin, Truncating};

fn schema() -> Value {
    serde_json::from_str(Truncating::describe().params_schema).unwrap_or_default()
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
