//! The changes a stage makes to the next logits row: what they mean is the
//! contract's, how fast they are is ours.

use sluice_contract::edits::{Edit, Overflow, Passes};
use sluice_kernels::row;

use crate::engine::{LogitsRow, TokenId};

pub(super) use sluice_contract::edits::{EditError, Edits};

/// Passes over a row that use the machine's vectors.
const PASSES: Passes = Passes {
    mask: row::mask,
    add_masked: row::add_masked,
};

/// Applies the edits to a row, see [`Edits::apply`].
pub(super) fn apply(
    edits: &Edits,
    row: &mut LogitsRow<'_>,
    bits: &mut [u32],
) -> Result<(), Overflow> {
    let change = |row: &mut [f32]| edits.apply(row, bits, PASSES);
    let ids: Option<Vec<&[TokenId]>> = edits.list().iter().map(ids).collect();
    match ids {
        Some(ids) => row.change_at(ids.into_iter().flatten().copied(), change),
        None => row.change(change),
    }
}

/// The ids that an edit can change; none where those may be any.
fn ids(edit: &Edit) -> Option<&[TokenId]> {
    match edit {
        Edit::Add { ids, .. } | Edit::Scale { ids, .. } | Edit::Deny { ids } => Some(ids),
        Edit::AddMasked { .. } | Edit::Allow { .. } | Edit::Mask { .. } => None,
    }
}

/// Tokens that are banned in `row` and that the edits would raise if they
/// could.
pub(super) fn raise_banned(edits: &Edits, row: &[f32]) -> Vec<TokenId> {
    let is_banned = |logit: &f32| *logit == f32::NEG_INFINITY;
    let from_zero = |logit: &f32| if is_banned(logit) { 0.0 } else { *logit };
    let mut open: Vec<_> = row.iter().map(from_zero).collect();
    // An overflow is a fault, which is told of elsewhere.
    let _ = edits.apply(&mut open, &mut vec![0; row.len().div_ceil(32)], PASSES);
    (0..)
        .zip(row.iter().zip(open))
        .filter(|(_, (old, new))| is_banned(old) && *new > 0.0)
        .map(|(id, _)| id)
        .collect()
}
