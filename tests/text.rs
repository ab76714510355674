//! The default model's own vocabulary and chat template, against
//! `text/smollm2.json`, which `text/make_fixtures.py` makes with independent
//! references.
#![allow(clippy::unwrap_used)]

#[path = "support/model.rs"]
mod model;

use serde_json::Value;
use sha2::{Digest, Sha256};
use sluice::{
    assemble,
    text::{ChatInput, ChatTemplate},
};
use std::fmt::Write;

#[test]
fn the_default_model_reads_and_writes_as_the_reference() {
    let checkpoint = model::checkpoint();
    let tokenizer = assemble::tokenizer(&checkpoint).unwrap();
    let template = checkpoint.chat_template.unwrap();
    let fixture: Value = serde_json::from_str(include_str!("text/smollm2.json")).unwrap();
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    for case in fixture["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(
            tokenizer.encode(text, false).unwrap(),
            ids(&case["plain"]),
            "{text:?}"
        );
        assert_eq!(
            tokenizer.encode(text, true).unwrap(),
            ids(&case["special"]),
            "{text:?}"
        );
    }
    let mut digest = Sha256::new();
    for id in 0..tokenizer.size() {
        let bytes = tokenizer.token_bytes(id);
        digest.update((bytes.len() as u32).to_le_bytes());
        digest.update(bytes);
    }
    let hex = digest
        .finalize()
        .iter()
        .fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
    assert_eq!(fixture["size"], tokenizer.size());
    assert_eq!(fixture["token_bytes_sha256"], hex);
    let name = |key: &str| fixture[key].as_str().map(String::from);
    let template = ChatTemplate::new(&template, name("bos_token"), name("eos_token")).unwrap();
    for chat in fixture["chats"].as_array().unwrap() {
        let text = template
            .render(&ChatInput {
                messages: chat["messages"].as_array().unwrap(),
                tools: Some(&chat["tools"]).filter(|tools| !tools.is_null()),
                add_generation_prompt: chat["add_generation_prompt"].as_bool().unwrap(),
                extra: chat["extra"].as_object(),
            })
            .unwrap();
        assert_eq!(text, chat["text"].as_str().unwrap());
        assert_eq!(tokenizer.encode(&text, true).unwrap(), ids(&chat["ids"]));
    }
}
