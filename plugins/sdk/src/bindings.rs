//! What wit-bindgen makes of the contract.
//!
//! The imports are generated once; each exported interface gets a world of its
//! own, so that a plugin exports exactly what its kind asks for. The parts are
//! joined when the component is made.

#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    unsafe_code,
    unreachable_pub,
    reason = "generated"
)]

pub mod host {
    wit_bindgen::generate!({
        inline: "
            package sluice:sdk;
            world host {
                import sluice:sampling/types@0.1.0;
                import sluice:sampling/vocabulary@0.1.0;
                import sluice:sampling/edits@0.1.0;
                import sluice:sampling/control@0.1.0;
                import sluice:sampling/logits@0.1.0;
                import sluice:sampling/random@0.1.0;
                import sluice:sampling/log@0.1.0;
            }
        ",
        path: "wit",
        generate_all,
        generate_unused_types: true,
    });
}

pub mod plugin {
    wit_bindgen::generate!({
        inline: "
            package sluice:sdk;
            world described { export sluice:sampling/plugin@0.1.0; }
        ",
        path: "wit",
        pub_export_macro: true,
        default_bindings_module: "sluice_plugin::bindings::plugin",
    });
}

pub mod token_processor {
    wit_bindgen::generate!({
        inline: "
            package sluice:sdk;
            world from-tokens { export sluice:sampling/token-processor@0.1.0; }
        ",
        path: "wit",
        with: { "sluice:sampling/types@0.1.0": crate::bindings::host::sluice::sampling::types },
        pub_export_macro: true,
        default_bindings_module: "sluice_plugin::bindings::token_processor",
    });
}

pub mod logits_processor {
    wit_bindgen::generate!({
        inline: "
            package sluice:sdk;
            world from-logits { export sluice:sampling/logits-processor@0.1.0; }
        ",
        path: "wit",
        with: { "sluice:sampling/types@0.1.0": crate::bindings::host::sluice::sampling::types },
        pub_export_macro: true,
        default_bindings_module: "sluice_plugin::bindings::logits_processor",
    });
}

pub mod sampler {
    wit_bindgen::generate!({
        inline: "
            package sluice:sdk;
            world to-token { export sluice:sampling/sampler@0.1.0; }
        ",
        path: "wit",
        with: { "sluice:sampling/types@0.1.0": crate::bindings::host::sluice::sampling::types },
        pub_export_macro: true,
        default_bindings_module: "sluice_plugin::bindings::sampler",
    });
}
