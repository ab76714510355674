//! The changes a stage makes to the next logits row: checked and recorded
//! when the guest makes them, applied when the row is there.

use crate::TokenId;

/// What every edit weighs besides its ids, so that empty ones are bounded too.
const EDIT_COST: usize = 16;

/// One call of the contract's `edits`.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    Add { ids: Vec<TokenId>, values: Vec<f32> },
    AddMasked { words: Vec<u32>, value: f32 },
    Scale { ids: Vec<TokenId>, divisor: f32 },
    Deny { ids: Vec<TokenId> },
    Allow { ids: Vec<TokenId> },
    Mask { words: Vec<u32> },
}

/// An edit that the contract forbids, in words for the plugin's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EditError(String);

/// An edit raised a logit to positive infinity.
#[derive(Debug, thiserror::Error)]
#[error("its edits raised a logit to infinity")]
pub struct Overflow;

/// The two passes over a whole row that edits need. Whoever has faster ones
/// than [`Passes::PLAIN`] brings them.
#[derive(Clone, Copy, Debug)]
pub struct Passes {
    /// Bans each id whose bit is 0. Bit `i % 32` of word `i / 32`; missing words
    /// are 0, bits past the row mean nothing.
    pub mask: fn(row: &mut [f32], words: &[u32]),
    /// Adds to each id whose bit is 1.
    pub add_masked: fn(row: &mut [f32], words: &[u32], value: f32),
}

impl Passes {
    /// As the contract says it.
    pub const PLAIN: Self = Self {
        mask: |row, words| {
            for (id, logit) in row.iter_mut().enumerate() {
                if !is_set(words, id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        },
        add_masked: |row, words, value| {
            for (id, logit) in row.iter_mut().enumerate() {
                if is_set(words, id) {
                    *logit += value;
                }
            }
        },
    };
}

fn is_set(words: &[u32], id: usize) -> bool {
    words
        .get(id / 32)
        .is_some_and(|word| word >> (id % 32) & 1 == 1)
}

/// The edits of one stage at one position, in the order in which they were
/// made. The lists are the ones the runtime lifted out of the guest: they are
/// moved in, never copied.
#[derive(Debug, Default)]
pub struct Edits {
    list: Vec<Edit>,
    cost: usize,
}

impl Edits {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them.
    pub fn list(&self) -> &[Edit] {
        &self.list
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Forgets them, for the next call.
    pub fn clear(&mut self) {
        self.list.clear();
        self.cost = 0;
    }

    /// Records `add`.
    ///
    /// # Errors
    /// As the contract says, here and in the next ones, and where the edits of
    /// one call are worth too much.
    pub fn add(
        &mut self,
        vocabulary_size: u32,
        ids: Vec<TokenId>,
        values: Vec<f32>,
    ) -> Result<(), EditError> {
        if ids.len() != values.len() {
            return Err(EditError(format!(
                "`add` was given {} ids and {} values",
                ids.len(),
                values.len()
            )));
        }
        check_ids("add", vocabulary_size, &ids)?;
        for &value in &values {
            check_value("add", value)?;
        }
        self.push(vocabulary_size, ids.len(), Edit::Add { ids, values })
    }

    /// Records `add-masked`.
    ///
    /// # Errors
    /// See [`add`](Self::add).
    pub fn add_masked(
        &mut self,
        vocabulary_size: u32,
        words: Vec<u32>,
        value: f32,
    ) -> Result<(), EditError> {
        check_value("add-masked", value)?;
        self.push(
            vocabulary_size,
            words.len(),
            Edit::AddMasked { words, value },
        )
    }

    /// Records `scale`.
    ///
    /// # Errors
    /// See [`add`](Self::add).
    pub fn scale(
        &mut self,
        vocabulary_size: u32,
        ids: Vec<TokenId>,
        divisor: f32,
    ) -> Result<(), EditError> {
        check_ids("scale", vocabulary_size, &ids)?;
        if !divisor.is_finite() || divisor <= 0.0 {
            return Err(EditError(format!(
                "`scale` was given the divisor {divisor}, which is not finite and above zero"
            )));
        }
        self.push(vocabulary_size, ids.len(), Edit::Scale { ids, divisor })
    }

    /// Records `deny`.
    ///
    /// # Errors
    /// See [`add`](Self::add).
    pub fn deny(&mut self, vocabulary_size: u32, ids: Vec<TokenId>) -> Result<(), EditError> {
        check_ids("deny", vocabulary_size, &ids)?;
        self.push(vocabulary_size, ids.len(), Edit::Deny { ids })
    }

    /// Records `allow`.
    ///
    /// # Errors
    /// See [`add`](Self::add).
    pub fn allow(&mut self, vocabulary_size: u32, ids: Vec<TokenId>) -> Result<(), EditError> {
        check_ids("allow", vocabulary_size, &ids)?;
        self.push(vocabulary_size, ids.len(), Edit::Allow { ids })
    }

    /// Records `mask`.
    ///
    /// # Errors
    /// See [`add`](Self::add).
    pub fn mask(&mut self, vocabulary_size: u32, words: Vec<u32>) -> Result<(), EditError> {
        self.push(vocabulary_size, words.len(), Edit::Mask { words })
    }

    /// Bounds the memory that the edits of one call can take: a guest calls
    /// as often as its deadline allows.
    fn push(&mut self, vocabulary_size: u32, len: usize, edit: Edit) -> Result<(), EditError> {
        let limit = 4 * vocabulary_size as usize + 65_536;
        // These pass over the whole row when they are applied, in which no
        // deadline interrupts them.
        let whole_row = matches!(
            edit,
            Edit::AddMasked { .. } | Edit::Allow { .. } | Edit::Mask { .. }
        );
        let passes = if whole_row {
            vocabulary_size as usize / 16
        } else {
            0
        };
        self.cost += len + EDIT_COST + passes;
        if self.cost > limit {
            return Err(EditError(format!(
                "the edits of one call are worth more than {limit} ids, values and words"
            )));
        }
        // Without ids these change nothing; an empty `allow` or `mask` bans.
        let is_void = len == 0
            && matches!(
                edit,
                Edit::Add { .. } | Edit::Scale { .. } | Edit::Deny { .. }
            );
        if !is_void {
            self.list.push(edit);
        }
        Ok(())
    }

    /// Applies the edits to a row. `bits` is scratch space of at least one
    /// bit for each of its values, all zero before and after.
    ///
    /// # Errors
    /// Where a logit becomes infinite; the row is then of no use.
    pub fn apply(&self, row: &mut [f32], bits: &mut [u32], passes: Passes) -> Result<(), Overflow> {
        for edit in &self.list {
            match edit {
                Edit::Add { ids, values } => add(row, ids, values)?,
                Edit::AddMasked { words, value } => add_masked(row, words, *value, passes)?,
                Edit::Scale { ids, divisor } => scale(row, ids, *divisor, bits)?,
                Edit::Deny { ids } => deny(row, ids),
                Edit::Allow { ids } => allow(row, ids, bits, passes),
                Edit::Mask { words } => (passes.mask)(row, words),
            }
        }
        Ok(())
    }
}

fn check_ids(function: &str, vocabulary_size: u32, ids: &[TokenId]) -> Result<(), EditError> {
    match ids.iter().max() {
        Some(&id) if id >= vocabulary_size => Err(EditError(format!(
            "`{function}` was given the id {id}, the vocabulary has {vocabulary_size}"
        ))),
        _ => Ok(()),
    }
}

fn check_value(function: &str, value: f32) -> Result<(), EditError> {
    if value.is_nan() || value == f32::INFINITY {
        return Err(EditError(format!(
            "`{function}` was given the value {value}"
        )));
    }
    Ok(())
}

// A row holds neither NaN nor positive infinity and an edit's value neither,
// so a sum or a quotient is NaN never, and positive infinity by overflow only.

fn add(row: &mut [f32], ids: &[TokenId], values: &[f32]) -> Result<(), Overflow> {
    let mut overflow = false;
    for (&id, value) in ids.iter().zip(values) {
        let logit = &mut row[id as usize];
        *logit += value;
        overflow |= *logit == f32::INFINITY;
    }
    if overflow { Err(Overflow) } else { Ok(()) }
}

fn add_masked(row: &mut [f32], words: &[u32], value: f32, passes: Passes) -> Result<(), Overflow> {
    (passes.add_masked)(row, words, value);
    let overflow = value > 0.0 && row.contains(&f32::INFINITY);
    if overflow { Err(Overflow) } else { Ok(()) }
}

fn scale(row: &mut [f32], ids: &[TokenId], divisor: f32, bits: &mut [u32]) -> Result<(), Overflow> {
    let mut overflow = false;
    for &id in ids {
        let (word, bit) = (id as usize / 32, 1 << (id % 32));
        if bits[word] & bit != 0 {
            continue;
        }
        bits[word] |= bit;
        let logit = &mut row[id as usize];
        *logit = if *logit > 0.0 {
            *logit / divisor
        } else {
            *logit * divisor
        };
        overflow |= *logit == f32::INFINITY;
    }
    clear_bits(bits, ids);
    if overflow { Err(Overflow) } else { Ok(()) }
}

fn deny(row: &mut [f32], ids: &[TokenId]) {
    for &id in ids {
        row[id as usize] = f32::NEG_INFINITY;
    }
}

fn allow(row: &mut [f32], ids: &[TokenId], bits: &mut [u32], passes: Passes) {
    for &id in ids {
        bits[id as usize / 32] |= 1 << (id % 32);
    }
    (passes.mask)(row, bits);
    clear_bits(bits, ids);
}

fn clear_bits(bits: &mut [u32], ids: &[TokenId]) {
    for &id in ids {
        bits[id as usize / 32] = 0;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    // Every value here is exact in f32.
    #![allow(clippy::float_cmp)]
    use super::*;

    const BANNED: f32 = f32::NEG_INFINITY;
    /// The vocabulary size of these tests.
    const V: u32 = 4;

    fn apply(edits: &Edits, row: &[f32]) -> Vec<f32> {
        let mut row = row.to_vec();
        let mut bits = vec![0; row.len().div_ceil(32)];
        edits.apply(&mut row, &mut bits, Passes::PLAIN).unwrap();
        assert!(bits.iter().all(|&word| word == 0), "{bits:?}");
        row
    }

    #[test]
    fn add_accumulates_repeated_ids() {
        let mut edits = Edits::default();
        edits
            .add(V, vec![1, 3, 1], vec![0.5, BANNED, 0.25])
            .unwrap();
        assert_eq!(
            apply(&edits, &[1.0, 2.0, 3.0, 4.0]),
            [1.0, 2.75, 3.0, BANNED]
        );
    }

    #[test]
    fn scale_counts_an_id_once_and_knows_the_sign() {
        let mut edits = Edits::default();
        edits.scale(V, vec![0, 1, 0, 2, 1], 2.0).unwrap();
        assert_eq!(apply(&edits, &[4.0, -3.0, 0.0, 1.0]), [2.0, -6.0, 0.0, 1.0]);
    }

    #[test]
    fn allow_deny_and_mask_ban() {
        let mut edits = Edits::default();
        edits.allow(V, vec![1, 2]).unwrap();
        assert_eq!(apply(&edits, &[1.0; 4]), [BANNED, 1.0, 1.0, BANNED]);
        edits.deny(V, vec![2]).unwrap();
        assert_eq!(apply(&edits, &[1.0; 4]), [BANNED, 1.0, BANNED, BANNED]);

        let mut edits = Edits::default();
        edits.mask(V, vec![0b1010, u32::MAX]).unwrap();
        assert_eq!(apply(&edits, &[1.0; 4]), [BANNED, 1.0, BANNED, 1.0]);

        let mut edits = Edits::default();
        edits.mask(40, vec![u32::MAX]).unwrap();
        let row = apply(&edits, &[1.0; 40]);
        assert_eq!(row[31], 1.0);
        assert_eq!(&row[32..], [BANNED; 8]);
    }

    #[test]
    fn a_banned_token_stays_banned() {
        let mut edits = Edits::default();
        edits.deny(V, vec![0]).unwrap();
        edits.add(V, vec![0], vec![100.0]).unwrap();
        edits.add_masked(V, vec![1], f32::MAX).unwrap();
        edits.scale(V, vec![0], 0.5).unwrap();
        edits.allow(V, vec![0, 1]).unwrap();
        edits.mask(V, vec![0b11]).unwrap();
        assert_eq!(apply(&edits, &[1.0, 1.0, 1.0, 1.0])[0], BANNED);
    }

    #[test]
    fn edits_are_applied_in_the_order_made() {
        let mut edits = Edits::default();
        edits.scale(V, vec![0], 2.0).unwrap();
        edits.add(V, vec![0], vec![-3.0]).unwrap();
        assert_eq!(apply(&edits, &[4.0; 4])[0], -1.0);
        let mut edits = Edits::default();
        edits.add(V, vec![0], vec![-3.0]).unwrap();
        edits.scale(V, vec![0], 2.0).unwrap();
        assert_eq!(apply(&edits, &[4.0; 4])[0], 0.5);
    }

    #[test]
    fn what_the_contract_forbids_is_a_fault() {
        let mut edits = Edits::default();
        assert!(edits.add(V, vec![4], vec![0.0]).is_err());
        assert!(edits.add(V, vec![0], vec![]).is_err());
        assert!(edits.add(V, vec![0], vec![f32::NAN]).is_err());
        assert!(edits.add(V, vec![0], vec![f32::INFINITY]).is_err());
        assert!(edits.add_masked(V, vec![1], f32::NAN).is_err());
        assert!(edits.add_masked(V, vec![1], f32::INFINITY).is_err());
        assert!(edits.deny(V, vec![u32::MAX]).is_err());
        assert!(edits.allow(V, vec![0, 4]).is_err());
        for divisor in [0.0, -1.0, f32::NAN, f32::INFINITY, BANNED] {
            assert!(edits.scale(V, vec![0], divisor).is_err(), "{divisor}");
        }
        assert!(edits.scale(V, vec![4], 1.0).is_err());
        assert!(edits.is_empty());
    }

    #[test]
    fn a_logit_that_overflows_is_a_fault() {
        let overflows = |edits: Edits| {
            edits
                .apply(&mut [f32::MAX; 4], &mut [0], Passes::PLAIN)
                .is_err()
        };
        let mut edits = Edits::default();
        edits.add(V, vec![2], vec![f32::MAX]).unwrap();
        assert!(overflows(edits));
        let mut edits = Edits::default();
        edits.add_masked(V, vec![0b100], f32::MAX).unwrap();
        assert!(overflows(edits));
        let mut edits = Edits::default();
        edits.scale(V, vec![2], 0.5).unwrap();
        assert!(overflows(edits));
    }

    #[test]
    fn one_call_cannot_record_without_end() {
        let mut edits = Edits::default();
        let mut record = || (0..1_000_000).try_for_each(|_| edits.deny(V, Vec::new()));
        assert!(record().is_err());
        edits.clear();
        let half = vec![0; 30_000];
        assert!(edits.deny(V, half.clone()).is_ok());
        assert!(edits.deny(V, half.clone()).is_ok());
        assert!(edits.deny(V, half).is_err());
    }
}
