//! What a `tokenizer.json` says about the bytes of its tokens.

use serde::Deserialize;
use serde_json::Value;

use super::Vocabulary;
use super::byte_level::Reader;
use super::tokenizer::{TokenizerError, invalid};
use super::tools::is_marker;

const SUPPORTED_MODELS: &str = "BPE, Unigram";
const SUPPORTED_DECODERS: &str = "ByteLevel, ByteFallback, Metaspace";
/// Far above any vocabulary; keeps a stray id from asking for all memory.
const MAX_SIZE: usize = 1 << 24;

/// The parts of `tokenizer.json` that say how tokens are spelled.
#[derive(Deserialize)]
pub(super) struct Description {
    model: ModelDescription,
    #[serde(default)]
    decoder: Value,
}

#[derive(Deserialize)]
struct ModelDescription {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// How the tokens of a vocabulary are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// One character of the byte-level alphabet for each byte.
    ByteLevel,
    /// `▁` for a space, `<0x0A>` for a byte.
    SentencePiece,
}

impl Description {
    pub(super) fn spelling(&self) -> Result<Spelling, TokenizerError> {
        if let Some(kind) = &self.model.kind
            && !matches!(kind.as_str(), "BPE" | "Unigram")
        {
            return Err(TokenizerError::Unsupported {
                what: "tokenizer model",
                name: kind.clone(),
                supported: SUPPORTED_MODELS,
            });
        }
        let mut names = Vec::new();
        decoder_names(&self.decoder, &mut names);
        if names.contains(&"ByteLevel") {
            Ok(Spelling::ByteLevel)
        } else if names
            .iter()
            .any(|name| matches!(*name, "ByteFallback" | "Metaspace"))
        {
            Ok(Spelling::SentencePiece)
        } else {
            Err(TokenizerError::Unsupported {
                what: "decoder",
                name: if names.is_empty() {
                    "none".into()
                } else {
                    names.join("+")
                },
                supported: SUPPORTED_DECODERS,
            })
        }
    }
}

fn decoder_names<'a>(decoder: &'a Value, names: &mut Vec<&'a str>) {
    match decoder["decoders"].as_array() {
        Some(decoders) => {
            for decoder in decoders {
                decoder_names(decoder, names);
            }
        }
        None => names.extend(decoder["type"].as_str()),
    }
}

impl Spelling {
    /// The bytes of an added token that is text.
    fn read_added(self, content: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => content.into(),
            Self::SentencePiece => content.replace('\u{2581}', " ").into_bytes(),
        }
    }

    /// The bytes of a token that is not added.
    pub(super) fn read(self, reader: &Reader, token: &str) -> Vec<u8> {
        match self {
            Self::ByteLevel => reader.read(token).unwrap_or_else(|| token.into()),
            Self::SentencePiece => match byte_token(token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
        }
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_byte)
}

pub(super) fn read_vocabulary(
    inner: &tokenizers::Tokenizer,
    spelling: Spelling,
) -> Result<Vocabulary, TokenizerError> {
    let added = inner.get_added_tokens_decoder();
    let tokens = inner.get_vocab(true);
    let size = tokens.values().max().map_or(0, |&id| id as usize + 1);
    if size > MAX_SIZE {
        return Err(TokenizerError::Invalid(format!(
            "an id is {}; the limit is {}",
            size - 1,
            MAX_SIZE - 1
        )));
    }
    let reader = Reader::new();
    let mut pieces = vec![Vec::new(); size];
    for (token, id) in tokens {
        pieces[id as usize] = match added.get(&id) {
            Some(added) if added.special && !is_marker(&added.content) => Vec::new(),
            Some(added) => spelling.read_added(&added.content),
            None => spelling.read(&reader, &token),
        };
    }
    let special = added.into_iter().map(|(id, token)| (id, token.content));
    Ok(Vocabulary::new(&pieces, special.collect()))
}

/// The token that the post-processor puts in front of every text.
pub(super) fn first_token(
    inner: &tokenizers::Tokenizer,
    vocabulary: &Vocabulary,
) -> Result<Option<u32>, TokenizerError> {
    let encoding = inner.encode_fast("", true).map_err(invalid)?;
    match *encoding.get_ids() {
        [] => Ok(None),
        [bos] if vocabulary.special_name(bos).is_some() => Ok(Some(bos)),
        _ => Err(TokenizerError::Unsupported {
            what: "post-processor",
            name: format!("one that adds {:?}", encoding.get_tokens()),
            supported: "one that adds at most BOS",
        }),
    }
}
