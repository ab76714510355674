//! Choices made of bytes.

/// Bytes that are taken from the front; zeros when there are no more, so that
/// every input says something.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((&byte, rest)) => {
                self.rest = rest;
                byte
            }
            None => 0,
        }
    }

    /// A number below `n`, which is at most 256.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// Up to `n` bytes.
    pub(crate) fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(n.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }
}
