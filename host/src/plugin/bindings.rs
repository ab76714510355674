//! Code generated from `wit/`, and nothing else. The imports are generated
//! once and shared by the worlds of the three kinds.

#![allow(clippy::pedantic, unreachable_pub)]

use wasmtime::component::bindgen;

pub mod imports {
    super::bindgen!({
        path: "../wit",
        inline: "
            package sluice:host;
            world imports {
                import sluice:sampling/types@0.1.0;
                import sluice:sampling/vocabulary@0.1.0;
                import sluice:sampling/edits@0.1.0;
                import sluice:sampling/control@0.1.0;
                import sluice:sampling/logits@0.1.0;
                import sluice:sampling/random@0.1.0;
                import sluice:sampling/log@0.1.0;
            }
        ",
        world: "sluice:host/imports",
        imports: { default: trappable },
    });
}

pub use imports::sluice::sampling::{control, edits, log, logits, random, types, vocabulary};

/// A component that decides from tokens alone.
pub mod token {
    super::bindgen!({
        path: "../wit",
        world: "token-plugin",
        imports: { default: trappable },
        with: {
            "sluice:sampling/types": super::types,
            "sluice:sampling/vocabulary": super::vocabulary,
            "sluice:sampling/edits": super::edits,
            "sluice:sampling/control": super::control,
            "sluice:sampling/log": super::log,
        },
    });
}

/// A component that reads and changes the logits.
pub mod logits_plugin {
    super::bindgen!({
        path: "../wit",
        world: "logits-plugin",
        imports: { default: trappable },
        with: {
            "sluice:sampling/types": super::types,
            "sluice:sampling/vocabulary": super::vocabulary,
            "sluice:sampling/edits": super::edits,
            "sluice:sampling/logits": super::logits,
            "sluice:sampling/random": super::random,
            "sluice:sampling/log": super::log,
        },
    });
}

/// A component that chooses the token.
pub mod sampler {
    super::bindgen!({
        path: "../wit",
        world: "sampler-plugin",
        imports: { default: trappable },
        with: {
            "sluice:sampling/types": super::types,
            "sluice:sampling/vocabulary": super::vocabulary,
            "sluice:sampling/logits": super::logits,
            "sluice:sampling/random": super::random,
            "sluice:sampling/log": super::log,
        },
    });
}
