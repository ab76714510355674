//! Write a plugin for Sluice.
//!
//! A plugin takes part in choosing a sequence's next token. Pick the kind that
//! needs the least: a [`TokenProcessor`] decides from tokens alone and costs
//! nothing, because it runs while the model computes; a [`LogitsProcessor`]
//! changes the logits it reads; a [`Sampler`] picks the token.
//!
//! ```
//! use serde::Deserialize;
//! use sluice_plugin::{Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits};
//!
//! /// Bans one token.
//! struct Without(TokenId);
//!
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Params {
//!     id: TokenId,
//! }
//!
//! impl Plugin for Without {
//!     type Params = Params;
//!
//!     fn describe() -> Description {
//!         Description {
//!             name: "without",
//!             version: "0.1.0",
//!             summary: "Bans one token.",
//!             params_schema: r#"{
//!                 "type": "object",
//!                 "properties": { "id": { "type": "integer", "minimum": 0 } },
//!                 "required": ["id"],
//!                 "additionalProperties": false
//!             }"#,
//!         }
//!     }
//!
//!     fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> {
//!         Ok(Self(params.id))
//!     }
//! }
//!
//! impl TokenProcessor for Without {
//!     fn plan(&mut self, _accepted: &[TokenId]) -> Result<(), String> {
//!         edits::deny(&[self.0]);
//!         Ok(())
//!     }
//! }
//!
//! sluice_plugin::export!(TokenProcessor for Without);
//! ```
//!
//! Keep the arithmetic in functions that take and return plain values: they
//! are tested by `cargo test` on any machine. The functions that reach the host
//! ([`edits`], [`control`], [`logits`], [`random`], [`vocabulary`], [`log`])
//! exist only inside a component and panic elsewhere.
//!
//! What the shipped plugins are made of is here too: passes over a row
//! ([`row`]), the best tokens read as far as needed ([`ranking`]), the stages
//! of a sampler ([`sampling`]), counts in a window ([`window`]), and where a
//! text's end stood before ([`matches`](mod@matches)).

#![cfg_attr(test, allow(clippy::float_cmp, reason = "worked values are exact"))]

#[doc(hidden)]
pub mod bindings;
#[doc(hidden)]
pub mod glue;
pub mod matches;
mod plugin;
pub mod random;
pub mod ranking;
pub mod row;
pub mod sampling;
pub mod window;

pub use bindings::host::sluice::sampling::{
    control, edits, log, logits,
    types::{ModelInfo, OpenError, TokenId},
    vocabulary,
};
pub use plugin::{Description, LogitsProcessor, Plugin, Sampler, SequenceInfo, TokenProcessor};

/// Makes the crate a component: `export!(TokenProcessor for Mine)`, and
/// likewise with `LogitsProcessor` and `Sampler`. Once per crate, whose
/// `crate-type` is `cdylib`.
#[macro_export]
macro_rules! export {
    (TokenProcessor for $plugin:ty) => {
        $crate::export!(@ $plugin, token_processor);
    };
    (LogitsProcessor for $plugin:ty) => {
        $crate::export!(@ $plugin, logits_processor);
    };
    (Sampler for $plugin:ty) => {
        $crate::export!(@ $plugin, sampler);
    };
    (@ $plugin:ty, $kind:ident) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the component's exports")]
        const _: () = {
            type Exported = $crate::glue::Exported<$plugin>;
            $crate::bindings::plugin::export!(Exported with_types_in $crate::bindings::plugin);
            $crate::bindings::$kind::export!(Exported with_types_in $crate::bindings::$kind);
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() = $crate::glue::$kind::<$plugin>;
    };
}
