//! Text to token ids.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{Model, Normalizer, OffsetType, PreTokenizedString, PreTokenizer};

use super::byte_level::{self, Reader};
use super::{GgufVocabulary, Vocabulary};

/// Why a tokenizer cannot be made, or cannot read a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// A kind of tokenizer that is not implemented.
    #[error("{what} `{name}` is not supported; supported: {supported}")]
    Unsupported {
        what: &'static str,
        name: String,
        supported: &'static str,
    },
    /// The description of the tokenizer makes no sense.
    #[error("the tokenizer cannot be read: {0}")]
    Invalid(String),
    /// This text cannot be written in tokens.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
    /// A defect in the tokenizer, contained.
    #[error("the tokenizer failed: {0}")]
    Panicked(String),
}

const SUPPORTED_MODELS: &str = "BPE, Unigram";
const SUPPORTED_DECODERS: &str = "ByteLevel, ByteFallback, Metaspace";

/// Reads text as token ids, and knows the bytes of each.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocabulary: Arc<Vocabulary>,
    bos: Option<u32>,
    /// Set where a byte-level vocabulary lacks tokens for some bytes.
    is_partial: bool,
}

/// The parts of `tokenizer.json` that say how tokens are spelled.
#[derive(Deserialize)]
struct Description {
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
enum Spelling {
    /// One character of the byte-level alphabet for each byte.
    ByteLevel,
    /// `▁` for a space, `<0x0A>` for a byte.
    SentencePiece,
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json`. Truncation and padding that it
    /// asks for are left out: a prompt is never shortened.
    ///
    /// # Errors
    /// Not such a file, or a model or decoder that is not supported.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let description: Description = serde_json::from_slice(json).map_err(invalid)?;
        let spelling = description.spelling()?;
        let mut inner = contained(|| tokenizers::Tokenizer::from_bytes(json).map_err(invalid))?;
        inner.with_truncation(None).map_err(invalid)?;
        inner.with_padding(None);
        let vocabulary = read_vocabulary(&inner, spelling);
        let bos = contained(|| first_token(&inner, &vocabulary))?;
        Ok(Self::new(inner, vocabulary, bos, spelling))
    }

    /// Makes the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// A kind that is not supported, or metadata that contradict themselves.
    pub fn from_gguf(vocabulary: GgufVocabulary) -> Result<Self, TokenizerError> {
        let layout = vocabulary.layout()?;
        let json = serde_json::to_vec(&layout.json).map_err(invalid)?;
        let inner = contained(|| tokenizers::Tokenizer::from_bytes(&json).map_err(invalid))?;
        let vocabulary = Vocabulary::new(&layout.pieces, layout.special);
        Ok(Self::new(
            inner,
            vocabulary,
            layout.bos,
            Spelling::ByteLevel,
        ))
    }

    /// A small tokenizer of these pieces, for scripted models: `pieces[i]`
    /// holds the bytes of id `i`, and `special` names those without any. Text
    /// is read byte by byte, or as a piece where a whole word is one.
    ///
    /// # Errors
    /// Two equal pieces, a name without a piece, or BOS out of range.
    pub fn from_pieces(
        pieces: &[&[u8]],
        special: &[(u32, &str)],
        bos: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<String> = pieces
            .iter()
            .map(|piece| byte_level::spell(piece))
            .collect();
        let mut token_types = vec![1; tokens.len()];
        for &(id, name) in special {
            let at = id as usize;
            let (Some(token), Some(kind)) = (tokens.get_mut(at), token_types.get_mut(at)) else {
                return Err(TokenizerError::Invalid(format!("{name} has no piece {id}")));
            };
            *token = name.into();
            *kind = 3;
        }
        Self::from_gguf(GgufVocabulary {
            model: "gpt2".into(),
            pre: "llama-bpe".into(),
            tokens,
            merges: Vec::new(),
            token_types,
            bos,
            add_bos: Some(bos.is_some()),
        })
    }

    fn new(
        inner: tokenizers::Tokenizer,
        vocabulary: Vocabulary,
        bos: Option<u32>,
        spelling: Spelling,
    ) -> Self {
        let is_single_byte = |id| match vocabulary.token_bytes(id) {
            &[byte] => Some(byte),
            _ => None,
        };
        let mut has_byte = [false; 256];
        for byte in (0..vocabulary.size()).filter_map(is_single_byte) {
            has_byte[usize::from(byte)] = true;
        }
        Self {
            is_partial: spelling == Spelling::ByteLevel && has_byte.contains(&false),
            inner,
            vocabulary: Arc::new(vocabulary),
            bos,
        }
    }

    /// The ids of a text. `special` says whether the names of special tokens
    /// in it stand for those tokens, as in a rendered chat template, or are
    /// ordinary text, as in what a user wrote. Adds no token of its own.
    ///
    /// # Errors
    /// Text that the vocabulary cannot write.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let ids = contained(|| {
            if special {
                let encoding = self.inner.encode_fast(text, false).map_err(unwritable)?;
                Ok(encoding.get_ids().to_vec())
            } else {
                self.encode_plain(text).map_err(unwritable)
            }
        })?;
        if self.is_partial {
            self.check_complete(text, &ids)?;
        }
        Ok(ids)
    }

    /// The ids of a prompt: special tokens are read as such, and BOS comes
    /// first, once, if the model wants it.
    ///
    /// # Errors
    /// Text that the vocabulary cannot write.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode(text, true)?;
        if let Some(bos) = self.bos.filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The token that [`encode_prompt`](Self::encode_prompt) puts in front.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The bytes of every id.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// See [`Vocabulary::token_bytes`].
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.token_bytes(id)
    }

    /// See [`Vocabulary::all_token_bytes`].
    pub fn all_token_bytes(&self) -> (&[u32], &[u8]) {
        self.vocabulary.all_token_bytes()
    }

    /// See [`Vocabulary::special_tokens`].
    pub fn special_tokens(&self) -> &[(u32, String)] {
        self.vocabulary.special_tokens()
    }

    /// Number of ids the tokenizer knows.
    pub fn size(&self) -> u32 {
        self.vocabulary.size()
    }

    /// See [`Vocabulary::pad_to`].
    pub fn pad_to(&mut self, row_width: u32) {
        Arc::make_mut(&mut self.vocabulary).pad_to(row_width);
    }

    /// Reads no special tokens: the tokenizer's steps without the one that
    /// looks for them.
    fn encode_plain(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        let mut text = tokenizers::NormalizedString::from(text);
        if let Some(normalizer) = self.inner.get_normalizer() {
            normalizer.normalize(&mut text)?;
        }
        let mut words = PreTokenizedString::from(text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words)?;
        }
        let model = self.inner.get_model();
        words.tokenize(|word| model.tokenize(word.get()))?;
        let encoding = words.into_encoding(None, 0, OffsetType::None)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// A byte without a token is dropped silently by the library.
    fn check_complete(&self, text: &str, ids: &[u32]) -> Result<(), TokenizerError> {
        let mut rest = text.as_bytes();
        for &id in ids {
            let name = self.vocabulary.special_name(id).unwrap_or_default();
            let token = self.token_bytes(id);
            let token = if token.is_empty() {
                name.as_bytes()
            } else {
                token
            };
            match rest.strip_prefix(token) {
                Some(after) => rest = after,
                None => break,
            }
        }
        match rest.first() {
            None => Ok(()),
            Some(byte) => Err(TokenizerError::Encode(format!(
                "no token for byte 0x{byte:02X} at {}",
                text.len() - rest.len()
            ))),
        }
    }
}

impl Description {
    fn spelling(&self) -> Result<Spelling, TokenizerError> {
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
    fn read(self, reader: &Reader, token: &str) -> Vec<u8> {
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

fn read_vocabulary(inner: &tokenizers::Tokenizer, spelling: Spelling) -> Vocabulary {
    let added = inner.get_added_tokens_decoder();
    let tokens = inner.get_vocab(true);
    let size = tokens.values().max().map_or(0, |&id| id as usize + 1);
    let reader = Reader::new();
    let mut pieces = vec![Vec::new(); size];
    for (token, id) in tokens {
        pieces[id as usize] = match added.get(&id) {
            Some(added) if added.special => Vec::new(),
            Some(added) => added.content.clone().into_bytes(),
            None => spelling.read(&reader, &token),
        };
    }
    let special = added.into_iter().map(|(id, token)| (id, token.content));
    Vocabulary::new(&pieces, special.collect())
}

/// The token that the post-processor puts in front of every text.
fn first_token(
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

fn invalid(error: impl Into<tokenizers::Error>) -> TokenizerError {
    TokenizerError::Invalid(error.into().to_string())
}

fn unwritable(error: impl Into<tokenizers::Error>) -> TokenizerError {
    TokenizerError::Encode(error.into().to_string())
}

/// Runs code of the library; a panic in it is an error, not the end of the
/// thread. The library keeps no state that a panic could leave half changed.
fn contained<T>(run: impl FnOnce() -> Result<T, TokenizerError>) -> Result<T, TokenizerError> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(TokenizerError::Panicked(super::panic_text(panic.as_ref()))))
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
