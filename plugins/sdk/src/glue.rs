//! Between the traits and the generated exports.

use std::{cell::RefCell, marker::PhantomData, panic, sync::Once};

use crate::{
    LogitsProcessor, OpenError, Plugin, Sampler, SequenceInfo, TokenId, TokenProcessor,
    bindings::{
        host::sluice::sampling::types,
        logits_processor::exports::sluice::sampling::logits_processor as logits_export,
        plugin::exports::sluice::sampling::plugin as plugin_export,
        sampler::exports::sluice::sampling::sampler as sampler_export,
        token_processor::exports::sluice::sampling::token_processor as token_export,
    },
    log,
};

/// The type that the generated code exports for plugin `P`.
pub struct Exported<P>(PhantomData<P>);

/// A sequence behind the shared reference that a resource's methods get.
pub struct Open<P>(RefCell<P>);

/// A trap says only `unreachable`; the log says why.
fn log_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        panic::set_hook(Box::new(|info| {
            log::write(log::Level::Error, &info.to_string());
        }));
    });
}

/// Opens a sequence with parameters that the schema has let through.
pub(crate) fn open<P: Plugin>(params: &str, sequence: SequenceInfo) -> Result<P, OpenError> {
    let params = serde_json::from_str(params)
        .map_err(|error| OpenError::InvalidParams(error.to_string()))?;
    P::open(params, sequence)
}

fn open_exported<P: Plugin>(info: types::SequenceInfo) -> Result<Open<P>, OpenError> {
    log_panics();
    let sequence = SequenceInfo {
        prompt: info.prompt,
        max_tokens: info.max_tokens,
        end_ids: info.end_ids,
    };
    open(&info.params, sequence).map(|state| Open(RefCell::new(state)))
}

impl<P: Plugin> plugin_export::Guest for Exported<P> {
    fn describe() -> plugin_export::Description {
        log_panics();
        let own = P::describe();
        plugin_export::Description {
            name: own.name.into(),
            version: own.version.into(),
            summary: own.summary.into(),
            params_schema: crate::schema::<P::Params>().to_string(),
        }
    }

    fn prepare() {
        log_panics();
        P::prepare();
    }
}

impl<P: TokenProcessor> token_export::Guest for Exported<P> {
    type Sequence = Open<P>;
}

impl<P: TokenProcessor> token_export::GuestSequence for Open<P> {
    fn open(info: types::SequenceInfo) -> Result<token_export::Sequence, OpenError> {
        open_exported::<P>(info).map(token_export::Sequence::new)
    }

    fn plan(&self, accepted: Vec<TokenId>) -> Result<(), String> {
        self.0.borrow_mut().plan(&accepted)
    }
}

impl<P: LogitsProcessor> logits_export::Guest for Exported<P> {
    type Sequence = Open<P>;
}

impl<P: LogitsProcessor> logits_export::GuestSequence for Open<P> {
    fn open(info: types::SequenceInfo) -> Result<logits_export::Sequence, OpenError> {
        open_exported::<P>(info).map(logits_export::Sequence::new)
    }

    fn process(&self, accepted: Vec<TokenId>) -> Result<Option<Vec<f32>>, String> {
        self.0.borrow_mut().process(&accepted)
    }
}

impl<P: Sampler> sampler_export::Guest for Exported<P> {
    type Sequence = Open<P>;
}

impl<P: Sampler> sampler_export::GuestSequence for Open<P> {
    fn open(info: types::SequenceInfo) -> Result<sampler_export::Sequence, OpenError> {
        open_exported::<P>(info).map(sampler_export::Sequence::new)
    }

    fn sample(&self, accepted: Vec<TokenId>) -> Result<TokenId, String> {
        self.0.borrow_mut().sample(&accepted)
    }
}
