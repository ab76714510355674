//! Tokenizer, chat template, detokenizer and stop strings.
//!
//! ```text
//! messages ─ ChatTemplate ─ text ─ Tokenizer ─ prompt ids ─ … ─ ids ─ TextStream ─ text
//!                                      └ Vocabulary: the bytes of each id ┘
//! ```
//!
//! A token is bytes, not text: a character may be spread over several tokens.
//! [`TextStream`] therefore joins bytes, shows a character when it is whole,
//! and looks for stop strings in what it would show. Nothing here knows a
//! model, a request or a socket.

use std::any::Any;

mod byte_level;
mod detokenizer;
mod gguf;
mod gguf_sentencepiece;
mod stop;
mod stream;
mod template;
mod to_json;
mod tokenizer;
mod tokenizer_json;
mod tools;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use gguf::GgufVocabulary;
pub use stop::{MAX_STOP_BYTES, MAX_STOP_STRINGS, StopError, StopStrings};
pub use stream::{Delta, TextStream};
pub use template::{ChatInput, ChatTemplate, TemplateError};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use tools::{Parsed, ToolCall, ToolFormat, ToolStream};
pub use vocabulary::Vocabulary;

/// What a caught panic said.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic without a message")
        .to_string()
}

#[cfg(test)]
mod fixture_tests;
