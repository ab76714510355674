//! Logs every call with all that the component was told, one line each:
//! `open 0 prompt [1,2] max 5 end [2]`, then `plan 0 accepted []`. The number
//! tells the sequences of an instance apart.

use std::sync::atomic::{AtomicU32, Ordering};

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, export, log,
};

static SEQUENCES: AtomicU32 = AtomicU32::new(0);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {}

struct Recorder {
    sequence: u32,
}

impl Plugin for Recorder {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description(
            "recorder",
            r#"{"type": "object", "additionalProperties": false}"#,
        )
    }

    fn open(_: Params, info: SequenceInfo) -> Result<Self, OpenError> {
        let sequence = SEQUENCES.fetch_add(1, Ordering::Relaxed);
        let line = format!(
            "open {sequence} prompt {} max {} end {}",
            list(&info.prompt),
            info.max_tokens,
            list(&info.end_ids)
        );
        log::write(log::Level::Info, &line);
        Ok(Self { sequence })
    }
}

impl TokenProcessor for Recorder {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        log::write(
            log::Level::Info,
            &format!("plan {} accepted {}", self.sequence, list(accepted)),
        );
        Ok(())
    }
}

/// `[1,2,3]`.
fn list(ids: &[TokenId]) -> String {
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    format!("[{}]", ids.join(","))
}

export!(TokenProcessor for Recorder);
