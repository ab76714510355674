//! Logs every call with what the component was told, one line each:
//! `open 0 prompt 2 ded89066 [1,2] max 5 end [2]`, then
//! `plan 0 accepted 0 811c9dc5 []`. The first number tells the sequences of an
//! instance apart. Of prompt and accepted tokens come the count, a hash of all
//! (32-bit FNV-1a over the ids as four little-endian bytes each) and the last
//! few ids, because a log line is short.

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
            digest(&info.prompt),
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
            &format!("plan {} accepted {}", self.sequence, digest(accepted)),
        );
        Ok(())
    }
}

/// `3 794671b5 [1,2,3]`: count, hash, and at most the last 16.
fn digest(ids: &[TokenId]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let last = &ids[ids.len().saturating_sub(16)..];
    format!("{} {hash:08x} {}", ids.len(), list(last))
}

/// `[1,2,3]`.
fn list(ids: &[TokenId]) -> String {
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    format!("[{}]", ids.join(","))
}

export!(TokenProcessor for Recorder);
