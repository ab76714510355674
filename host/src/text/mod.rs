//! Tokenizer, chat template, detokenizer and stop strings.
