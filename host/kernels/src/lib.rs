//! The arithmetic of Sluice's CPU path: matrix products, host operations and
//! passes over a logits row.
