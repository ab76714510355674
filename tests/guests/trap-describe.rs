//! Traps in `describe`.

use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, export,
};

struct Described;

impl Plugin for Described {
    type Params = ();

    fn describe() -> Description {
        std::process::abort()
    }

    fn open((): (), _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(Self)
    }
}

impl TokenProcessor for Described {
    fn plan(&mut self, _accepted: &[TokenId]) -> Result<(), String> {
        Ok(())
    }
}

export!(TokenProcessor for Described);
