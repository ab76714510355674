//! A sampler's stages, on any [`Row`] and any source of chance.
//!
//! ```
//! use sluice_plugin::sampling::{Params, Pipeline};
//!
//! let params = Params { top_k: 3, top_p: 0.6, ..Params::default() };
//! let pipeline = Pipeline::new(params, &[], 5)?;
//! let row = [1.0, 4.0, 2.0, 3.0, f32::NEG_INFINITY];
//! let mut kept = pipeline.kept(&row[..], &|_| 0.0).expect("not all are banned");
//! assert_eq!(kept.ids(), [1]);
//! # Ok::<_, String>(())
//! ```
//!
//! In the default order: temperature → `top_n_sigma` → `typical_p` → `top_k` →
//! `top_p` → epsilon → eta → `top_a` → `min_p` → xtc → draw. Probabilities are
//! renormalised over what the stage before kept, at the temperature in force
//! there. All stages but `typical_p` and xtc keep the head of the tokens in
//! order, so tokens are read from the best down, as far as the question needs;
//! the whole row is read only for its entropy or its deviation.
//!
//! Each truncating stage is a function of a ranking that says how many tokens
//! it keeps, at least `min_keep` of those there are.

mod epsilon;
mod eta;
mod min_p;
mod order;
mod params;
mod pipeline;
mod quadratic;
mod temperature;
mod top_a;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod xtc;

pub use order::Stage;
pub use params::Params;
pub use pipeline::Pipeline;

#[cfg(doc)]
use crate::ranking::Row;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
