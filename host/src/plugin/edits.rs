//! The changes a stage makes to the next logits row: what they mean is the
//! contract's, how fast they are is ours.

use sluice_contract::edits::Passes;
use sluice_kernels::row;

pub(super) use sluice_contract::edits::{EditError, Edits};

/// Passes over a row that use the machine's vectors.
pub(super) const PASSES: Passes = Passes {
    mask: row::mask,
    add_masked: row::add_masked,
};
