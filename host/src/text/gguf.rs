//! Tokenizers described by GGUF metadata.

use serde_json::{Map, Value, json};

use super::byte_level::Reader;
use super::tokenizer::TokenizerError;
use super::tokenizer_json::Spelling;
use super::tools::is_marker;

/// What a GGUF file says about its tokenizer, by metadata key.
#[derive(Clone, Debug, Default)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.model`; supported are `gpt2`, byte-level BPE, and
    /// `llama`, SentencePiece's.
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is cut before merging. SentencePiece does
    /// not cut.
    pub pre: String,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.merges`, best first, each two tokens and a space.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores`, by id: SentencePiece merges to the token with
    /// the highest.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`; `None` where the key is absent.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; `None` where the key is absent.
    pub add_space_prefix: Option<bool>,
}

const SUPPORTED_MODELS: &str = "gpt2, llama";
const SUPPORTED_PRE: &str = "smollm, llama-bpe, qwen2, gpt-2, default";

pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
pub(super) const BYTE: i32 = 6;

/// A vocabulary checked and written as the parts of a tokenizer.
pub(super) struct Layout {
    /// As `tokenizer.json` has it.
    pub(super) json: Value,
    /// The bytes of each id, without the unused ones at the end.
    pub(super) pieces: Vec<Vec<u8>>,
    pub(super) special: Vec<(u32, String)>,
    /// The token to put in front of a prompt.
    pub(super) bos: Option<u32>,
    pub(super) spelling: Spelling,
}

/// How text is cut into words before merging.
struct Cut {
    normalizer: Value,
    pre_tokenizer: Value,
    /// Whether a word that is a token as a whole is that token, whatever the
    /// merges say.
    ignore_merges: bool,
    /// Whether a prompt begins with BOS where the file does not say.
    add_bos: bool,
}

impl GgufVocabulary {
    pub(super) fn layout(self) -> Result<Layout, TokenizerError> {
        let (spelling, cut) = match self.model.as_str() {
            "gpt2" => (Spelling::ByteLevel, Some(Cut::named(&self.pre)?)),
            "llama" => (Spelling::SentencePiece, None),
            _ => {
                return Err(TokenizerError::Unsupported {
                    what: "tokenizer model",
                    name: self.model,
                    supported: SUPPORTED_MODELS,
                });
            }
        };
        let n_tokens = self.tokens.len();
        if self.token_types.len() != n_tokens {
            return Err(TokenizerError::Invalid(format!(
                "{n_tokens} tokens but {} token types",
                self.token_types.len()
            )));
        }
        let adds_bos = cut.as_ref().is_none_or(|cut| cut.add_bos);
        let bos = self.bos.filter(|_| self.add_bos.unwrap_or(adds_bos));
        if self.add_bos == Some(true) && bos.is_none() {
            return Err(TokenizerError::Invalid(
                "prompts begin with BOS but no BOS token is named".into(),
            ));
        }
        if let Some(bos) = bos.filter(|&bos| bos as usize >= n_tokens) {
            return Err(TokenizerError::Invalid(format!(
                "BOS is {bos}, but there are {n_tokens} tokens"
            )));
        }
        Ok(Layout {
            pieces: self.pieces(spelling),
            special: self.special(),
            json: match cut {
                Some(cut) => self.byte_level_json(&cut)?,
                None => self.sentencepiece_json()?,
            },
            bos,
            spelling,
        })
    }

    pub(super) fn typed(
        &self,
    ) -> impl DoubleEndedIterator<Item = (u32, &str, i32)> + ExactSizeIterator {
        let tokens = self.tokens.iter().zip(&self.token_types).enumerate();
        tokens.map(|(id, (token, &kind))| (id as u32, token.as_str(), kind))
    }

    fn pieces(&self, spelling: Spelling) -> Vec<Vec<u8>> {
        let reader = Reader::new();
        let n_used = self
            .typed()
            .rposition(|(_, _, kind)| kind != UNUSED)
            .map_or(0, |last| last + 1);
        self.typed()
            .take(n_used)
            .map(|(_, token, kind)| match kind {
                CONTROL if is_marker(token) => token.as_bytes().to_vec(),
                UNKNOWN | CONTROL | UNUSED => Vec::new(),
                USER_DEFINED => token.as_bytes().to_vec(),
                _ => spelling.read(&reader, token),
            })
            .collect()
    }

    fn special(&self) -> Vec<(u32, String)> {
        self.typed()
            .filter(|&(_, _, kind)| matches!(kind, UNKNOWN | CONTROL | USER_DEFINED))
            .map(|(id, token, _)| (id, token.to_string()))
            .collect()
    }

    /// Tokens and their ids.
    pub(super) fn vocabulary(&self) -> Result<Map<String, Value>, TokenizerError> {
        let mut vocabulary = Map::new();
        for (id, token, _) in self.typed().filter(|&(_, _, kind)| kind != UNUSED) {
            if vocabulary.insert(token.into(), id.into()).is_some() {
                return Err(TokenizerError::Invalid(format!(
                    "token {id}, {token:?}, is there twice"
                )));
            }
        }
        Ok(vocabulary)
    }

    fn byte_level_json(&self, cut: &Cut) -> Result<Value, TokenizerError> {
        let added: Vec<Value> = self
            .typed()
            .filter(|&(_, _, kind)| matches!(kind, CONTROL | USER_DEFINED))
            .map(|(id, token, kind)| added_token(id, token, kind == CONTROL))
            .collect();
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": cut.normalizer,
            "pre_tokenizer": cut.pre_tokenizer,
            "post_processor": null,
            "decoder": byte_level(true),
            "model": {
                "type": "BPE", "vocab": self.vocabulary()?, "merges": self.merges,
                "ignore_merges": cut.ignore_merges, "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": false,
            },
        }))
    }
}

/// A token that is found in a text before any merging.
pub(super) fn added_token(id: u32, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "special": special,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}

impl Cut {
    /// The rules that `tokenizer.ggml.pre` stands for. The patterns are those
    /// that the models' own tokenizers were trained with; `default` is
    /// llama.cpp's.
    fn named(pre: &str) -> Result<Self, TokenizerError> {
        let plain = |pre_tokenizer| Self {
            normalizer: Value::Null,
            pre_tokenizer,
            ignore_merges: false,
            add_bos: false,
        };
        Ok(match pre {
            "gpt-2" => plain(byte_level(true)),
            "smollm" => plain(sequence(&[
                json!({"type": "Digits", "individual_digits": true}),
                byte_level(true),
            ])),
            "default" => plain(sequence(&[
                split(r"[\p{P}\$\+<=>\^~\|]+"),
                split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
                split(r"\p{N}+"),
                split(r"[0-9][0-9][0-9]"),
                byte_level(false),
            ])),
            "llama-bpe" => Self {
                ignore_merges: true,
                add_bos: true,
                ..plain(sequence(&[split(&words(r"\p{N}{1,3}")), byte_level(false)]))
            },
            "qwen2" => Self {
                normalizer: json!({"type": "NFC"}),
                ..plain(sequence(&[split(&words(r"\p{N}")), byte_level(false)]))
            },
            _ => {
                return Err(TokenizerError::Unsupported {
                    what: "pre-tokenizer",
                    name: pre.into(),
                    supported: SUPPORTED_PRE,
                });
            }
        })
    }
}

/// The pattern that Llama 3 and Qwen share but for how they take numbers.
fn words(numbers: &str) -> String {
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        numbers,
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
    .join("|")
}

fn sequence(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}
