//! Schemas of plugins' parameters, which strangers write and the server
//! compiles and follows.

use serde_json::Value;
use sluice::plugin::ParamsSchema;

/// A schema and, after a zero byte, parameters.
pub fn params_schema(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let (schema, params) = text.split_once('\0').unwrap_or((text, "{}"));
    let (value, compiled) = match ParamsSchema::parse(schema) {
        Ok(parsed) => parsed,
        Err(message) => {
            assert!(message.len() < 4096, "{message}");
            return false;
        }
    };
    // As the server reads it from the compiler's report.
    assert!(ParamsSchema::new(&value).is_ok());
    let Ok(params) = serde_json::from_str::<Value>(params) else {
        return false;
    };
    let found = compiled.validate(&params);
    assert_eq!(found, compiled.validate(&params));
    if let Err(error) = found {
        assert!(
            params.pointer(&error.pointer).is_some(),
            "{} leads nowhere: {error}",
            error.pointer
        );
        assert!(error.message.len() < 4096, "{error}");
    }
    true
}
