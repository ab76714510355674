//! Never returns from `describe`.

use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, export,
};

struct Described;

impl Plugin for Described {
    type Params = ();

    fn describe() -> Description {
        test_guests::spin();
        test_guests::description("spin-describe")
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
