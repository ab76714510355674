//! The bytes of every token.

/// What each token id stands for. Ids at or above [`size`](Self::size) are
/// padding: they have no bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Token `i` is `bytes[offsets[i]..offsets[i + 1]]`.
    offsets: Vec<u32>,
    bytes: Vec<u8>,
    /// Ascending by id.
    special: Vec<(u32, String)>,
    size: u32,
}

impl Vocabulary {
    /// `pieces[i]` holds the bytes of token `i`: none for a control token.
    /// `special` names the tokens that ordinary text is not read as.
    pub fn new<P: AsRef<[u8]>>(pieces: &[P], mut special: Vec<(u32, String)>) -> Self {
        let mut offsets = Vec::with_capacity(pieces.len() + 1);
        let mut bytes = Vec::new();
        offsets.push(0);
        for piece in pieces {
            bytes.extend_from_slice(piece.as_ref());
            offsets.push(bytes.len() as u32);
        }
        special.sort();
        Self {
            size: pieces.len() as u32,
            offsets,
            bytes,
            special,
        }
    }

    /// Number of ids the tokenizer knows.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The bytes a token adds to the text: possibly part of a character. Empty
    /// for control tokens, padding, and ids out of range.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.offsets.get(id), self.offsets.get(id + 1)) {
            (Some(&start), Some(&end)) => self
                .bytes
                .get(start as usize..end as usize)
                .unwrap_or_default(),
            _ => &[],
        }
    }

    /// Every token's bytes as (offsets, bytes): token `i` is
    /// `bytes[offsets[i]..offsets[i + 1]]`.
    pub fn all_token_bytes(&self) -> (&[u32], &[u8]) {
        (&self.offsets, &self.bytes)
    }

    /// Tokens that ordinary text is not read as, with the text that names
    /// them, ascending by id: control tokens, which are never shown, and
    /// markers that are, such as `</think>` in models that show it.
    pub fn special_tokens(&self) -> &[(u32, String)] {
        &self.special
    }

    /// The name of a special token.
    pub fn special_name(&self, id: u32) -> Option<&str> {
        let at = self
            .special
            .binary_search_by_key(&id, |entry| entry.0)
            .ok()?;
        self.special.get(at).map(|(_, name)| name.as_str())
    }

    /// Adds tokens without bytes, so that [`all_token_bytes`](Self::all_token_bytes)
    /// covers a logits row of `row_width`. [`size`](Self::size) stays.
    pub fn pad_to(&mut self, row_width: u32) {
        let end = self.bytes.len() as u32;
        let n_offsets = self.offsets.len().max(row_width as usize + 1);
        self.offsets.resize(n_offsets, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        Vocabulary::new(
            &[b"".as_slice(), b"", b"a", b"\xF0\x9F"],
            vec![(1, "<eos>".into()), (0, "<bos>".into())],
        )
    }

    #[test]
    fn gives_the_bytes_of_each_token() {
        let vocabulary = vocabulary();
        assert_eq!(vocabulary.token_bytes(2), b"a");
        assert_eq!(vocabulary.token_bytes(3), b"\xF0\x9F");
        assert_eq!(
            vocabulary.all_token_bytes(),
            ([0, 0, 0, 1, 3].as_slice(), b"a\xF0\x9F".as_slice())
        );
    }

    #[test]
    fn special_and_unknown_ids_have_no_bytes() {
        let vocabulary = vocabulary();
        for id in [0, 1, 4, u32::MAX] {
            assert!(vocabulary.token_bytes(id).is_empty(), "{id}");
        }
        assert_eq!(vocabulary.special_name(0), Some("<bos>"));
        assert_eq!(vocabulary.special_name(2), None);
    }

    #[test]
    fn padding_widens_the_table_only() {
        let mut vocabulary = vocabulary();
        vocabulary.pad_to(6);
        assert_eq!(vocabulary.size(), 4);
        assert_eq!(vocabulary.all_token_bytes().0, [0, 0, 0, 1, 3, 3, 3]);
        vocabulary.pad_to(2);
        assert_eq!(vocabulary.all_token_bytes().0.len(), 7);
    }
}
