//! The changes a stage makes to the next logits row: checked and recorded
//! when the guest makes them, applied when the row is there.

use super::row;

use super::fault::HostFault;
use crate::engine::TokenId;

/// What every edit weighs besides its ids, so that empty ones are bounded too.
const EDIT_COST: usize = 16;

#[derive(Debug)]
enum Edit {
    Add { ids: Vec<TokenId>, values: Vec<f32> },
    AddMasked { words: Vec<u32>, value: f32 },
    Scale { ids: Vec<TokenId>, divisor: f32 },
    Deny { ids: Vec<TokenId> },
    Allow { ids: Vec<TokenId> },
    Mask { words: Vec<u32> },
}

/// An edit raised a logit to positive infinity.
#[derive(Debug)]
pub(super) struct Overflow;

/// The edits of one stage at one position, in the order in which they were
/// made. The lists are the ones the runtime lifted out of the guest: they are
/// moved in, never copied.
#[derive(Debug, Default)]
pub(super) struct Edits {
    list: Vec<Edit>,
    cost: usize,
}

impl Edits {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.cost = 0;
    }

    pub(super) fn add(
        &mut self,
        vocabulary_size: u32,
        ids: Vec<TokenId>,
        values: Vec<f32>,
    ) -> Result<(), HostFault> {
        if ids.len() != values.len() {
            return Err(HostFault::edit(format!(
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

    pub(super) fn add_masked(
        &mut self,
        vocabulary_size: u32,
        words: Vec<u32>,
        value: f32,
    ) -> Result<(), HostFault> {
        check_value("add-masked", value)?;
        self.push(
            vocabulary_size,
            words.len(),
            Edit::AddMasked { words, value },
        )
    }

    pub(super) fn scale(
        &mut self,
        vocabulary_size: u32,
        ids: Vec<TokenId>,
        divisor: f32,
    ) -> Result<(), HostFault> {
        check_ids("scale", vocabulary_size, &ids)?;
        if !divisor.is_finite() || divisor <= 0.0 {
            return Err(HostFault::edit(format!(
                "`scale` was given the divisor {divisor}, which is not finite and above zero"
            )));
        }
        self.push(vocabulary_size, ids.len(), Edit::Scale { ids, divisor })
    }

    pub(super) fn deny(
        &mut self,
        vocabulary_size: u32,
        ids: Vec<TokenId>,
    ) -> Result<(), HostFault> {
        check_ids("deny", vocabulary_size, &ids)?;
        self.push(vocabulary_size, ids.len(), Edit::Deny { ids })
    }

    pub(super) fn allow(
        &mut self,
        vocabulary_size: u32,
        ids: Vec<TokenId>,
    ) -> Result<(), HostFault> {
        check_ids("allow", vocabulary_size, &ids)?;
        self.push(vocabulary_size, ids.len(), Edit::Allow { ids })
    }

    pub(super) fn mask(&mut self, vocabulary_size: u32, words: Vec<u32>) -> Result<(), HostFault> {
        self.push(vocabulary_size, words.len(), Edit::Mask { words })
    }

    /// Bounds the memory that the edits of one call can take: a guest calls
    /// as often as its deadline allows.
    fn push(&mut self, vocabulary_size: u32, len: usize, edit: Edit) -> Result<(), HostFault> {
        let limit = 4 * vocabulary_size as usize + 65_536;
        self.cost += len + EDIT_COST;
        if self.cost > limit {
            return Err(HostFault::edit(format!(
                "the edits of one call hold more than {limit} ids, values and words"
            )));
        }
        self.list.push(edit);
        Ok(())
    }

    /// Applies the edits to a row. `bits` is scratch space of at least one
    /// bit for each of its values, all zero before and after.
    pub(super) fn apply(&self, row: &mut [f32], bits: &mut [u32]) -> Result<(), Overflow> {
        for edit in &self.list {
            match edit {
                Edit::Add { ids, values } => add(row, ids, values)?,
                Edit::AddMasked { words, value } => add_masked(row, words, *value)?,
                Edit::Scale { ids, divisor } => scale(row, ids, *divisor, bits)?,
                Edit::Deny { ids } => deny(row, ids),
                Edit::Allow { ids } => allow(row, ids, bits),
                Edit::Mask { words } => row::mask(row, words),
            }
        }
        Ok(())
    }
}

fn check_ids(function: &str, vocabulary_size: u32, ids: &[TokenId]) -> Result<(), HostFault> {
    match ids.iter().max() {
        Some(&id) if id >= vocabulary_size => Err(HostFault::edit(format!(
            "`{function}` was given the id {id}, the vocabulary has {vocabulary_size}"
        ))),
        _ => Ok(()),
    }
}

fn check_value(function: &str, value: f32) -> Result<(), HostFault> {
    if value.is_nan() || value == f32::INFINITY {
        return Err(HostFault::edit(format!(
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

fn add_masked(row: &mut [f32], words: &[u32], value: f32) -> Result<(), Overflow> {
    row::add_masked(row, words, value);
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

fn allow(row: &mut [f32], ids: &[TokenId], bits: &mut [u32]) {
    for &id in ids {
        bits[id as usize / 32] |= 1 << (id % 32);
    }
    row::mask(row, bits);
    clear_bits(bits, ids);
}

fn clear_bits(bits: &mut [u32], ids: &[TokenId]) {
    for &id in ids {
        bits[id as usize / 32] = 0;
    }
}
