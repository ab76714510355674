//! Write a plugin for Sluice.
//!
//! A plugin takes part in choosing a sequence's next token. Pick the kind that
//! needs the least: a [`TokenProcessor`] decides from tokens alone and costs
//! nothing, because it runs while the model computes; a [`LogitsProcessor`]
//! changes the logits it reads; a [`Sampler`] picks the token.
//!
//! ```
//! use serde::Deserialize;
//! use sluice_plugin::schemars::{self, JsonSchema};
//! use sluice_plugin::{Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits};
//!
//! /// Bans one token.
//! struct Without(TokenId);
//!
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Params {
//!     /// What must not come.
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
//! An ordinary test runs it, on any machine and without WebAssembly, and the
//! same cases hold in the component by `sluice plugin test`:
//!
//! ```
//! # use serde::Deserialize;
//! # use sluice_plugin::schemars::{self, JsonSchema};
//! # use sluice_plugin::{Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, edits};
//! # struct Without(TokenId);
//! # #[derive(Deserialize, JsonSchema)]
//! # struct Params { id: TokenId }
//! # impl Plugin for Without {
//! #     type Params = Params;
//! #     fn describe() -> Description { Description { name: "without", version: "0.1.0", summary: "." } }
//! #     fn open(params: Params, _: SequenceInfo) -> Result<Self, OpenError> { Ok(Self(params.id)) }
//! # }
//! # impl TokenProcessor for Without {
//! #     fn plan(&mut self, _: &[TokenId]) -> Result<(), String> { edits::deny(&[self.0]); Ok(()) }
//! # }
//! # sluice_plugin::export!(TokenProcessor for Without);
//! sluice_plugin::testing::cases::<Without>(
//!     r#"[{"id": "it is banned", "params": {"id": 1}, "logits": [1, 2], "kept_ids": [0]},
//!         {"id": "no id", "logits": [1], "expected_error": "invalid_params"}]"#,
//! );
//! ```
//!
//! The functions that reach the host ([`edits`], [`control`], [`logits`],
//! [`random`], [`vocabulary`], [`log`]) work inside a component and in what
//! `testing` calls, and panic elsewhere.
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
mod schema;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
pub mod window;

pub use bindings::host::sluice::sampling::types::{ModelInfo, OpenError, TokenId};
#[cfg(target_arch = "wasm32")]
pub use bindings::host::sluice::sampling::{control, edits, log, logits, vocabulary};
pub use plugin::{Description, LogitsProcessor, Plugin, Sampler, SequenceInfo, TokenProcessor};
pub use schema::schema;
pub use schemars;
#[cfg(not(target_arch = "wasm32"))]
pub use testing::imports::{control, edits, log, logits, vocabulary};

/// Makes the crate a component: `export!(TokenProcessor for Mine)`, and
/// likewise with `LogitsProcessor` and `Sampler`. Once per crate, whose
/// `crate-type` is `cdylib`. Elsewhere it makes the plugin known to `testing`.
#[macro_export]
macro_rules! export {
    (TokenProcessor for $plugin:ty) => {
        $crate::export!(@ $plugin, TokenProcessor, token_processor);
    };
    (LogitsProcessor for $plugin:ty) => {
        $crate::export!(@ $plugin, LogitsProcessor, logits_processor);
    };
    (Sampler for $plugin:ty) => {
        $crate::export!(@ $plugin, Sampler, sampler);
    };
    (@ $plugin:ty, $trait:ident, $kind:ident) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code, reason = "the component's exports")]
        const _: () = {
            type Exported = $crate::glue::Exported<$plugin>;
            $crate::bindings::plugin::export!(Exported with_types_in $crate::bindings::plugin);
            $crate::bindings::$kind::export!(Exported with_types_in $crate::bindings::$kind);
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() = $crate::testing::exported::<$plugin>;
        #[cfg(not(target_arch = "wasm32"))]
        impl $crate::testing::Exported for $plugin {
            const KIND: $crate::testing::Kind = $crate::testing::Kind::$trait;

            fn call(
                &mut self,
                accepted: &[$crate::TokenId],
            ) -> Result<$crate::testing::Answer, String> {
                $crate::testing::$kind(self, accepted)
            }
        }
    };
}
