//! Vocabularies of GGUF files that SentencePiece made: `▁` for a space, tokens
//! for single bytes, and a score for each token instead of a list of merges.

use std::cmp::Reverse;
use std::collections::HashSet;

use serde_json::{Value, json};

use super::gguf::{BYTE, CONTROL, GgufVocabulary, NORMAL, UNKNOWN, added_token};
use super::tokenizer::TokenizerError;

impl GgufVocabulary {
    /// The tokenizer as `tokenizer.json` has it, of the same tokens.
    pub(super) fn sentencepiece_json(&self) -> Result<Value, TokenizerError> {
        if self.scores.len() != self.tokens.len() {
            return Err(TokenizerError::Invalid(format!(
                "{} tokens but {} scores",
                self.tokens.len(),
                self.scores.len()
            )));
        }
        if let Some((id, _)) = self.scores.iter().enumerate().find(|(_, s)| s.is_nan()) {
            return Err(TokenizerError::Invalid(format!(
                "the score of token {id} is not a number"
            )));
        }
        let mut added = Vec::new();
        let mut unknown = Value::Null;
        for (id, token, kind) in self.typed() {
            match kind {
                NORMAL | BYTE => {}
                UNKNOWN => unknown = token.into(),
                _ => added.push(added_token(id, token, kind == CONTROL)),
            }
        }
        let mut steps = vec![json!({
            "type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}",
        })];
        // What llama.cpp takes for granted.
        if self.add_space_prefix.unwrap_or(true) {
            steps.insert(0, json!({"type": "Prepend", "prepend": "\u{2581}"}));
        }
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": steps},
            "pre_tokenizer": null,
            "post_processor": null,
            "decoder": {"type": "ByteFallback"},
            "model": {
                "type": "BPE", "vocab": self.vocabulary()?, "merges": self.scored_merges(),
                "ignore_merges": false, "dropout": null, "unk_token": unknown,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": true, "byte_fallback": true,
            },
        }))
    }

    /// Every way to make an ordinary token of two others, those of the best
    /// tokens first. Among the ways to make one, Hugging Face's converters put
    /// the longer left parts first.
    fn scored_merges(&self) -> Vec<[&str; 2]> {
        let ordinary = || self.typed().filter(|&(_, _, kind)| kind == NORMAL);
        let texts: HashSet<&str> = ordinary().map(|(_, token, _)| token).collect();
        let mut merges: Vec<(f32, [&str; 2])> = Vec::new();
        for (id, token, _) in ordinary() {
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if texts.contains(left) && texts.contains(right) {
                    merges.push((self.scores[id as usize], [left, right]));
                }
            }
        }
        merges.sort_by(|(a, [a_left, _]), (b, [b_left, _])| {
            let length = |text: &str| Reverse(text.chars().count());
            b.total_cmp(a)
                .then_with(|| length(a_left).cmp(&length(b_left)))
        });
        merges.into_iter().map(|(_, pair)| pair).collect()
    }
}
