//! What crosses the boundary between host and guest.

/// Bytes of the values that one call carried over the boundary, by its
/// arguments and results and by those of the imports that it called: 4 for each
/// id, logit and word of a list, 1 for each byte of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossed {
    /// Into the guest.
    pub in_bytes: u64,
    /// Out of it.
    pub out_bytes: u64,
}

impl Crossed {
    pub(super) fn add(&mut self, other: Self) {
        self.in_bytes += other.in_bytes;
        self.out_bytes += other.out_bytes;
    }

    /// Values that go to the guest.
    pub(super) fn enter<T>(&mut self, values: &[T]) {
        self.in_bytes += size_of_val(values) as u64;
    }

    /// Values that come from the guest.
    pub(super) fn leave<T>(&mut self, values: &[T]) {
        self.out_bytes += size_of_val(values) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::Crossed;

    #[test]
    fn values_count_by_their_size() {
        let mut crossed = Crossed::default();
        crossed.enter(&[1_u32, 2, 3]);
        crossed.enter(&[0_u64]);
        crossed.leave(b"four");
        assert_eq!((crossed.in_bytes, crossed.out_bytes), (20, 4));
        crossed.add(crossed);
        assert_eq!((crossed.in_bytes, crossed.out_bytes), (40, 8));
    }
}
