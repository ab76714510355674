#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

/// The twelve pieces of the scripted model.
fn scripted(bos: Option<u32>) -> Tokenizer {
    let pieces: [&[u8]; 12] = [
        b"",
        b"",
        b"a",
        b"b",
        b"c",
        b" ",
        b"\n",
        b"d",
        b"\xF0\x9F",
        b"\x98\x80",
        b"\xE3",
        b"\x81\x82",
    ];
    Tokenizer::from_pieces(&pieces, &[(0, "<bos>"), (1, "<eos>")], bos).unwrap()
}

#[test]
fn special_tokens_are_read_only_when_asked() {
    let tokenizer = Tokenizer::from_pieces(
        &[b"", b"a", b"<", b"b", b"o", b"s", b">"],
        &[(0, "<bos>")],
        None,
    )
    .unwrap();
    assert_eq!(tokenizer.encode("a<bos>a", true).unwrap(), [1, 0, 1]);
    assert_eq!(
        tokenizer.encode("a<bos>", false).unwrap(),
        [1, 2, 3, 4, 5, 6]
    );
    assert_eq!(tokenizer.encode("", false).unwrap(), [0_u32; 0]);
}

#[test]
fn a_prompt_begins_with_bos_exactly_once() {
    let tokenizer = scripted(Some(0));
    assert_eq!(tokenizer.encode_prompt("ab").unwrap(), [0, 2, 3]);
    assert_eq!(tokenizer.encode_prompt("<bos>ab").unwrap(), [0, 2, 3]);
    assert_eq!(tokenizer.encode_prompt("").unwrap(), [0]);
    assert_eq!(tokenizer.encode("ab", true).unwrap(), [2, 3]);
    assert_eq!(scripted(None).encode_prompt("ab").unwrap(), [2, 3]);
}

#[test]
fn short_prompts_are_prompts() {
    let tokenizer = scripted(None);
    for (text, n_tokens) in [("a", 1), ("a ", 2), ("abc", 3)] {
        assert_eq!(tokenizer.encode_prompt(text).unwrap().len(), n_tokens);
    }
}

#[test]
fn text_without_tokens_is_an_error_not_a_shorter_prompt() {
    let error = scripted(None).encode("abz", false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the text cannot be tokenized: no token for byte 0x7A at 2"
    );
    assert!(scripted(None).encode("a<bos>z", true).is_err());
    assert!(scripted(None).encode("a<bos>b", true).is_ok());
}

#[test]
fn knows_the_bytes_of_every_token() {
    let mut tokenizer = scripted(None);
    assert_eq!(tokenizer.size(), 12);
    assert_eq!(tokenizer.token_bytes(0), b"");
    assert_eq!(tokenizer.token_bytes(5), b" ");
    assert_eq!(tokenizer.token_bytes(8), b"\xF0\x9F");
    assert_eq!(tokenizer.special_tokens().len(), 2);
    tokenizer.pad_to(16);
    assert_eq!(tokenizer.size(), 12);
    assert_eq!(tokenizer.all_token_bytes().0.len(), 17);
}

/// Byte tokens a to e and two merges, cut as `pre` says.
fn gguf(pre: &str) -> GgufVocabulary {
    let tokens = ["a", "b", "Ġ", "ab", "Ġab", "<|end|>", "<think>", "[PAD7]"];
    GgufVocabulary {
        model: "gpt2".into(),
        pre: pre.into(),
        tokens: tokens.map(String::from).to_vec(),
        merges: vec!["a b".into(), "Ġ ab".into()],
        token_types: vec![1, 1, 1, 1, 1, 3, 4, 5],
        bos: Some(5),
        add_bos: None,
        ..GgufVocabulary::default()
    }
}

#[test]
fn reads_gguf_metadata() {
    let tokenizer = Tokenizer::from_gguf(gguf("smollm")).unwrap();
    assert_eq!(tokenizer.encode("ab aab", false).unwrap(), [3, 2, 0, 3]);
    assert_eq!(tokenizer.encode("ab<|end|> ab", true).unwrap(), [3, 5, 4]);
    assert_eq!(tokenizer.size(), 7, "unused ids at the end are padding");
    assert_eq!(tokenizer.token_bytes(4), b" ab");
    assert_eq!(tokenizer.token_bytes(5), b"");
    assert_eq!(
        tokenizer.token_bytes(6),
        b"<think>",
        "shown, so it has bytes"
    );
    assert_eq!(
        tokenizer.special_tokens(),
        [(5, "<|end|>".to_string()), (6, "<think>".to_string())]
    );
}

#[test]
fn bos_follows_the_file_or_else_the_kind() {
    let bos = |pre, add_bos| {
        let vocabulary = GgufVocabulary {
            add_bos,
            ..gguf(pre)
        };
        Tokenizer::from_gguf(vocabulary).unwrap().bos()
    };
    assert_eq!(bos("smollm", None), None);
    assert_eq!(bos("smollm", Some(true)), Some(5));
    assert_eq!(bos("llama-bpe", None), Some(5));
    assert_eq!(bos("llama-bpe", Some(false)), None);
}

#[test]
fn an_unsupported_kind_is_named_with_the_supported_ones() {
    let vocabulary = GgufVocabulary {
        model: "t5".into(),
        ..gguf("default")
    };
    let error = Tokenizer::from_gguf(vocabulary).err().unwrap();
    assert_eq!(
        error.to_string(),
        "tokenizer model `t5` is not supported; supported: gpt2, llama"
    );
    let error = Tokenizer::from_gguf(gguf("tekken")).err().unwrap();
    assert_eq!(
        error.to_string(),
        "pre-tokenizer `tekken` is not supported; supported: smollm, llama-bpe, qwen2, gpt-2, default"
    );
}

#[test]
fn contradictory_metadata_are_refused() {
    let wrong = [
        GgufVocabulary {
            token_types: vec![1],
            ..gguf("smollm")
        },
        GgufVocabulary {
            bos: None,
            add_bos: Some(true),
            ..gguf("smollm")
        },
        GgufVocabulary {
            bos: Some(8),
            add_bos: Some(true),
            ..gguf("smollm")
        },
        GgufVocabulary {
            merges: vec!["a z".into()],
            ..gguf("smollm")
        },
        GgufVocabulary {
            merges: vec!["a".into()],
            ..gguf("smollm")
        },
        GgufVocabulary {
            tokens: vec!["a".into(); 8],
            ..gguf("smollm")
        },
        GgufVocabulary {
            model: "llama".into(),
            ..gguf("")
        },
        GgufVocabulary {
            model: "llama".into(),
            scores: vec![f32::NAN; 8],
            ..gguf("")
        },
    ];
    for vocabulary in wrong {
        let error = Tokenizer::from_gguf(vocabulary).err().unwrap();
        assert!(matches!(error, TokenizerError::Invalid(_)), "{error:?}");
    }
}

/// A tokenizer as SentencePiece models are published.
fn sentencepiece() -> Json {
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [
            {"id": 0, "content": "<s>", "special": true, "single_word": false,
             "lstrip": false, "rstrip": false, "normalized": false},
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "byte_fallback": true,
            "vocab": {"<s>": 0, "a": 1, "▁": 2, "▁a": 3, "<0xE3>": 4, "<0x81>": 5, "<0x82>": 6},
            "merges": [["▁", "a"]]},
    })
}

type Json = serde_json::Value;

fn from_json(json: &Json) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_json(json.to_string().as_bytes())
}

#[test]
fn reads_sentencepiece_models() {
    let tokenizer = from_json(&sentencepiece()).unwrap();
    assert_eq!(
        tokenizer.encode("a a\u{3042}", false).unwrap(),
        [1, 3, 4, 5, 6]
    );
    assert_eq!(tokenizer.token_bytes(3), b" a");
    assert_eq!(tokenizer.token_bytes(4), b"\xE3");
    assert_eq!(tokenizer.token_bytes(0), b"");
}

#[test]
fn marks_of_calls_are_text_whatever_a_tokenizer_says() {
    let mut json = sentencepiece();
    for (id, content) in [(7, "<tool_call>"), (8, "</tool_call>"), (9, "<|end|>")] {
        let added = json["added_tokens"].as_array_mut().unwrap();
        let mut token = added[0].clone();
        token["id"] = id.into();
        token["content"] = content.into();
        added.push(token);
    }
    let tokenizer = from_json(&json).unwrap();
    assert_eq!(tokenizer.encode("<tool_call>a", true).unwrap(), [7, 1]);
    assert_eq!(tokenizer.token_bytes(7), b"<tool_call>");
    assert_eq!(tokenizer.token_bytes(8), b"</tool_call>");
    assert_eq!(tokenizer.token_bytes(9), b"");
}

#[test]
fn bos_comes_from_the_post_processor_and_nothing_is_cut_off() {
    let tokenizer = from_json(&sentencepiece()).unwrap();
    assert_eq!(tokenizer.bos(), Some(0));
    assert_eq!(tokenizer.encode_prompt("a a a").unwrap(), [0, 1, 3, 3]);
    assert_eq!(tokenizer.encode_prompt("<s>a").unwrap(), [0, 1]);
}

#[test]
fn unsupported_files_are_named() {
    let mut other_model = sentencepiece();
    other_model["model"] = json!({"type": "WordPiece", "vocab": {}});
    let mut other_decoder = sentencepiece();
    other_decoder["decoder"] = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
    let mut no_decoder = sentencepiece();
    no_decoder["decoder"] = Json::Null;
    let mut adds_more = sentencepiece();
    let bos = adds_more["post_processor"]["single"][0].clone();
    adds_more["post_processor"]["single"]
        .as_array_mut()
        .unwrap()
        .push(bos);
    for (json, name) in [
        (other_model, "`WordPiece`"),
        (other_decoder, "`WordPiece`"),
        (no_decoder, "`none`"),
        (adds_more, "one that adds"),
    ] {
        let error = from_json(&json).err().unwrap();
        assert!(
            matches!(error, TokenizerError::Unsupported { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(matches!(
        Tokenizer::from_json(b"{"),
        Err(TokenizerError::Invalid(_))
    ));
}

#[test]
fn a_stray_id_does_not_ask_for_all_memory() {
    let mut stray = sentencepiece();
    stray["model"]["vocab"]["z"] = json!(4_000_000_000_u32);
    let error = from_json(&stray).err().unwrap();
    assert!(error.to_string().contains("an id is 4000000000"), "{error}");
}

#[test]
fn a_panic_is_an_error_of_this_call_alone() {
    let error = contained::<()>(|| panic!("index {}", 7)).unwrap_err();
    assert_eq!(error, TokenizerError::Panicked("index 7".into()));
}

#[test]
fn is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<super::super::ChatTemplate>();
    shared::<super::super::TextStream>();
}

impl Tokenizer {
    /// What the library itself makes of these ids.
    pub(in crate::text) fn decode_by_library(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, true).unwrap()
    }
}
