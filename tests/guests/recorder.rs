//! Writes down everything it is told and, once `report_after` tokens are
//! generated, fails with it: `{"prompt":[1,2],"max_tokens":9,"end_ids":[2],
//! "accepted":[[],[5]]}`, one entry of `accepted` for each call. So a test sees
//! what its own request's plugin saw, by whichever way it sent it.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, export,
    schemars::{self, JsonSchema},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {
    report_after: usize,
}

struct Recorder {
    report_after: usize,
    info: SequenceInfo,
    accepted: Vec<Vec<TokenId>>,
}

impl Plugin for Recorder {
    type Params = Params;

    fn describe() -> Description {
        test_guests::description("recorder")
    }

    fn open(params: Params, info: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self {
            report_after: params.report_after,
            info,
            accepted: Vec::new(),
        })
    }
}

impl TokenProcessor for Recorder {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.accepted.push(accepted.to_vec());
        if self.accepted.iter().map(Vec::len).sum::<usize>() < self.report_after {
            return Ok(());
        }
        let calls: Vec<_> = self.accepted.iter().map(|ids| list(ids)).collect();
        Err(format!(
            r#"{{"prompt":{},"max_tokens":{},"end_ids":{},"accepted":[{}]}}"#,
            list(&self.info.prompt),
            self.info.max_tokens,
            list(&self.info.end_ids),
            calls.join(",")
        ))
    }
}

/// `[1,2,3]`.
fn list(ids: &[TokenId]) -> String {
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    format!("[{}]", ids.join(","))
}

export!(TokenProcessor for Recorder);
