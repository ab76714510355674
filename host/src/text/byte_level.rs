//! The byte-level alphabet: each of the 256 bytes written as one printable
//! character, as GPT-2's tokenizer introduced it. Bytes that are printable in
//! Latin-1 stand for themselves; the others, in ascending order, are written
//! with the characters from U+0100 on.

const FIRST_STAND_IN: u32 = 0x100;

/// Whether a byte is written as the character of the same number.
const fn is_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes that are not written as themselves, ascending.
fn stand_ins() -> impl Iterator<Item = u8> {
    (0..=u8::MAX).filter(|&byte| !is_itself(byte))
}

/// Writes bytes in the alphabet, one character each.
pub(super) fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| spell_byte(byte)).collect()
}

fn spell_byte(byte: u8) -> char {
    if is_itself(byte) {
        return char::from(byte);
    }
    let rank = stand_ins().take_while(|&other| other < byte).count() as u32;
    char::from_u32(FIRST_STAND_IN + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes that a spelling stands for; `None` when a character is not of
/// the alphabet.
pub(super) struct Reader {
    stand_ins: Vec<u8>,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self {
            stand_ins: stand_ins().collect(),
        }
    }

    pub(super) fn read(&self, spelling: &str) -> Option<Vec<u8>> {
        spelling
            .chars()
            .map(|character| self.read_character(character))
            .collect()
    }

    fn read_character(&self, character: char) -> Option<u8> {
        let number = u32::from(character);
        if let Ok(byte) = u8::try_from(number) {
            return is_itself(byte).then_some(byte);
        }
        let rank = number.checked_sub(FIRST_STAND_IN)?;
        self.stand_ins.get(rank as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_bytes_as_gpt2_does() {
        // From the published GPT-2 vocabulary: space is Ġ, newline Ċ, NUL Ā,
        // DEL ġ, soft hyphen Ń (the last stand-in).
        assert_eq!(spell(b" \n\0\x7F\xADa"), "ĠĊĀġŃa");
        assert_eq!(spell("é".as_bytes()), "Ã©");
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let spelling = spell(&all);
        assert_eq!(spelling.chars().count(), 256);
        assert_eq!(Reader::new().read(&spelling), Some(all));
    }

    #[test]
    fn refuses_characters_outside_the_alphabet() {
        for outside in [" ", "\n", "\u{AD}", "日", "\u{144}"] {
            assert_eq!(Reader::new().read(outside), None, "{outside:?}");
        }
    }
}
