//! Against what other programs made of the same input; see
//! `tests/text/make_fixtures.py`.
#![allow(clippy::unwrap_used)]

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ChatInput, ChatTemplate, GgufVocabulary, TemplateError, TextStream, Tokenizer};

#[derive(Deserialize)]
struct Cuts {
    tokens: Vec<String>,
    merges: Vec<String>,
    token_types: Vec<i32>,
    cases: Map<String, Value>,
}

#[derive(Deserialize)]
struct Scored {
    tokens: Vec<String>,
    scores: Vec<f32>,
    token_types: Vec<i32>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    plain: Vec<u32>,
    special: Vec<u32>,
}

impl Cuts {
    fn read() -> Self {
        serde_json::from_str(include_str!("../../../tests/text/cuts.json")).unwrap()
    }

    fn tokenizer(&self, pre: &str) -> Tokenizer {
        Tokenizer::from_gguf(self.vocabulary(pre)).unwrap()
    }

    fn vocabulary(&self, pre: &str) -> GgufVocabulary {
        GgufVocabulary {
            model: "gpt2".into(),
            pre: pre.into(),
            tokens: self.tokens.clone(),
            merges: self.merges.clone(),
            token_types: self.token_types.clone(),
            ..GgufVocabulary::default()
        }
    }
}

#[test]
fn every_pre_tokenizer_gives_the_reference_ids() {
    let cuts = Cuts::read();
    let mut n_checked = 0;
    for (pre, cases) in &cuts.cases {
        let tokenizer = cuts.tokenizer(pre);
        for case in Vec::<Case>::deserialize(cases).unwrap() {
            let text = &case.text;
            assert_eq!(
                tokenizer.encode(text, false).unwrap(),
                case.plain,
                "{pre}: {text:?}"
            );
            assert_eq!(
                tokenizer.encode(text, true).unwrap(),
                case.special,
                "{pre}: {text:?}"
            );
            n_checked += 1;
        }
    }
    assert_eq!((cuts.cases.len(), n_checked), (5, 240));
}

#[test]
fn the_same_tokenizer_as_a_file_gives_the_same() {
    let cuts = Cuts::read();
    for (pre, cases) in &cuts.cases {
        let json = cuts.vocabulary(pre).layout().unwrap().json.to_string();
        let from_file = Tokenizer::from_json(json.as_bytes()).unwrap();
        assert_eq!(from_file.vocabulary(), cuts.tokenizer(pre).vocabulary());
        for case in Vec::<Case>::deserialize(cases).unwrap() {
            assert_eq!(from_file.encode(&case.text, false).unwrap(), case.plain);
            assert_eq!(from_file.encode(&case.text, true).unwrap(), case.special);
        }
    }
}

#[test]
fn the_bytes_of_the_tokens_are_the_text() {
    let cuts = Cuts::read();
    let tokenizer = cuts.tokenizer("smollm");
    for case in Vec::<Case>::deserialize(&cuts.cases["smollm"]).unwrap() {
        let bytes: Vec<u8> = case
            .plain
            .iter()
            .flat_map(|&id| tokenizer.token_bytes(id).to_vec())
            .collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), case.text);
    }
}

#[test]
fn streamed_text_equals_the_librarys_own_decoding() {
    let cuts = Cuts::read();
    let tokenizer = cuts.tokenizer("smollm");
    let stop = std::sync::Arc::new(super::StopStrings::new(Vec::new()).unwrap());
    // Ids that stand for anything, so that characters break and mend.
    for start in 0..400_u32 {
        let ids: Vec<u32> = (0..40)
            .map(|step| {
                (start.wrapping_mul(2_654_435_761) >> 8).wrapping_add(step * step * 37)
                    % tokenizer.size()
            })
            .collect();
        let vocabulary = std::sync::Arc::clone(tokenizer.vocabulary());
        let mut stream = TextStream::new(vocabulary, std::sync::Arc::clone(&stop), 0);
        let mut text: String = ids.iter().map(|&id| stream.push(id).text).collect();
        text.push_str(&stream.finish().text);
        assert_eq!(text, tokenizer.decode_by_library(&ids), "{ids:?}");
    }
}

#[derive(Deserialize)]
struct Template {
    name: String,
    source: String,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Value>,
    tools: Option<Value>,
    add_generation_prompt: bool,
    extra: Map<String, Value>,
    text: Option<String>,
    refused: Option<String>,
}

#[test]
fn templates_give_what_jinja2_gives() {
    let templates: Vec<Template> =
        serde_json::from_str(include_str!("../../../tests/text/templates.json")).unwrap();
    let mut wrong = Vec::new();
    for template in &templates {
        let own = ChatTemplate::new(&template.source, Some("<bos>".into()), Some("<eos>".into()));
        let own = own.unwrap();
        for (index, chat) in template.chats.iter().enumerate() {
            let rendered = own.render(&ChatInput {
                messages: &chat.messages,
                tools: chat.tools.as_ref(),
                add_generation_prompt: chat.add_generation_prompt,
                extra: Some(&chat.extra),
            });
            let expected = match (&chat.text, &chat.refused) {
                (Some(text), None) => Ok(text.clone()),
                (_, refused) => Err(TemplateError::Raised(refused.clone().unwrap())),
            };
            if rendered != expected {
                wrong.push(format!(
                    "{} {index}:\n  {rendered:?}\n  {expected:?}",
                    template.name
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(templates.len(), 8);
}

#[derive(Deserialize)]
struct SentencePiece {
    gguf: Scored,
    json: Value,
    cases: Vec<Ids>,
    turn: Ids,
}

#[derive(Deserialize)]
struct Ids {
    text: String,
    ids: Vec<u32>,
}

/// As Gemma's; see `tests/text/make_sentencepiece.py`.
#[test]
fn sentencepieces_vocabularies_give_its_own_ids() {
    let fixture = include_str!("../../../tests/text/sentencepiece.json");
    let fixture: SentencePiece = serde_json::from_str(fixture).unwrap();
    let gguf = GgufVocabulary {
        model: "llama".into(),
        tokens: fixture.gguf.tokens,
        scores: fixture.gguf.scores,
        token_types: fixture.gguf.token_types,
        add_space_prefix: Some(false),
        ..GgufVocabulary::default()
    };
    let json = fixture.json.to_string();
    let from_file = Tokenizer::from_json(json.as_bytes()).unwrap();
    let from_gguf = Tokenizer::from_gguf(gguf.clone()).unwrap();
    for tokenizer in [&from_file, &from_gguf] {
        for Ids { text, ids } in &fixture.cases {
            assert_eq!(&tokenizer.encode(text, false).unwrap(), ids, "{text:?}");
            let bytes: Vec<u8> = ids
                .iter()
                .flat_map(|&id| tokenizer.token_bytes(id).to_vec())
                .collect();
            assert_eq!(String::from_utf8(bytes).unwrap(), *text);
        }
        let Ids { text, ids } = &fixture.turn;
        assert_eq!(&tokenizer.encode(text, true).unwrap(), ids, "{text:?}");
        let plain = tokenizer.encode(text, false).unwrap();
        assert!(!plain.contains(&ids[0]), "{plain:?}");
    }
    // Files of other models put a space in front of a text.
    let spaced = GgufVocabulary {
        add_space_prefix: None,
        ..gguf
    };
    let spaced = Tokenizer::from_gguf(spaced).unwrap();
    assert_eq!(
        spaced.encode("the river", false).unwrap(),
        from_gguf.encode(" the river", false).unwrap()
    );
}
