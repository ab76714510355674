//! What must hold for any bytes: one function each, which panics where it does
//! not, and says whether the bytes were taken for what they should be.
//!
//! `fuzz/` runs them under libFuzzer, `tests/fuzz.rs` on the kept inputs and on
//! changed ones.

mod chat_template;
mod component;
mod detokenizer;
mod grammar;
mod input;
mod model_files;
mod params_schema;
mod request;
mod tool_calls;

// The grammar plugin is a component, to which nothing links: these are its
// files, which know each other by these names.
#[path = "../../../plugins/grammar/src/lark.rs"]
mod lark;
#[path = "../../../plugins/grammar/src/mask.rs"]
mod mask;
#[path = "../../../plugins/grammar/src/matcher.rs"]
mod matcher;
#[path = "../../../plugins/grammar/src/pattern.rs"]
mod pattern;
#[path = "../../../plugins/grammar/src/schema.rs"]
mod schema;
#[path = "../../../plugins/grammar/src/source.rs"]
mod source;
#[path = "../../../plugins/grammar/src/tokens.rs"]
mod tokens;

pub use chat_template::chat_template;
pub use component::component;
pub use detokenizer::detokenizer;
pub use grammar::grammar;
pub use model_files::{gguf, safetensors};
pub use params_schema::params_schema;
pub use request::{compile_with, request};
pub use tool_calls::tool_calls;

/// Panics on bytes for which something does not hold; whether they were taken for
/// what they should be.
pub type Check = fn(&[u8]) -> bool;

/// Each with its name, which is that of its fuzz target and of the folder of its
/// kept inputs.
pub const CHECKS: [(&str, Check); 9] = [
    ("chat_template", chat_template),
    ("component", component),
    ("detokenizer", detokenizer),
    ("gguf", gguf),
    ("grammar", grammar),
    ("params_schema", params_schema),
    ("request", request),
    ("safetensors", safetensors),
    ("tool_calls", tool_calls),
];
