//! A matrix of a model's weights, in f32 or as it is quantised.

use std::{ops::Range, sync::Arc};

use mlx_rs::{Array, error::Exception};
use sluice_kernels::{Format, Quantised, logits_nt, pages, row::Logits};

use super::{
    Backend,
    weights::{Stored, Weight},
};

/// Weights `[out, in]`.
pub(super) enum Matrix {
    Dense {
        weights: Array,
        /// `[in, out]`, a view: so MLX asks for products of two operands that
        /// both lie along the summed dimension.
        view: Array,
    },
    /// On the CPU only. Shared with operations that MLX has not run yet.
    Quantised(Arc<Quantised>),
}

impl Matrix {
    /// Keeps weights quantised where `backend` has kernels for it.
    pub(super) fn new(weight: &Weight, backend: Backend) -> Result<Self, Exception> {
        if let (Backend::Cpu, Weight::Quantised(stored)) = (backend, weight)
            && let Some(quantised) = quantised(stored)?
        {
            return Ok(Self::Quantised(Arc::new(quantised)));
        }
        let weights = weight.dense()?;
        Ok(Self::Dense {
            view: weights.transpose_axes(&[1, 0])?,
            weights,
        })
    }

    /// `[n, in]` to `[n, out]`, by MLX.
    pub(super) fn product(&self, x: &Array) -> Result<Array, Exception> {
        match self {
            Self::Dense { view, .. } => x.matmul(view),
            Self::Quantised(_) => Err(Exception::custom(
                "only the kernels of the CPU read weights that are kept quantised",
            )),
        }
    }

    /// `[n, in]` to `[n, out]` of lines that are not MLX's, as rows of logits.
    pub(super) fn logits(&self, x: &[f32], logits: &mut Logits) -> Result<(), Exception> {
        let [n_out, n_in] = self.shape();
        let n_lines = x.len() / n_in;
        let rows = logits.resize(n_lines, n_out);
        match self {
            Self::Dense { weights, .. } => {
                logits_nt([n_lines, n_out, n_in], x, slice(weights)?, rows);
            }
            Self::Quantised(weights) => weights.logits_nt(n_lines, x, rows),
        }
        Ok(())
    }

    /// The lines `ids`, each below the number of lines.
    pub(super) fn lines(&self, ids: &[u32]) -> Result<Array, Exception> {
        match self {
            Self::Dense { weights, .. } => {
                weights.take_axis(Array::from_slice(ids, &[ids.len() as i32]), 0)
            }
            Self::Quantised(weights) => {
                let [_, n_in] = weights.shape();
                let mut lines = vec![0.0; ids.len() * n_in];
                weights.rows(ids, &mut lines);
                Ok(Array::from_slice(&lines, &[ids.len() as i32, n_in as i32]))
            }
        }
    }

    /// Where weights that a CPU computes with lie.
    pub(super) fn memory(&self) -> Result<Vec<Range<usize>>, Exception> {
        Ok(match self {
            Self::Dense { weights, .. } => vec![pages::memory(slice::<f32>(weights)?)],
            Self::Quantised(weights) => weights.memory().to_vec(),
        })
    }

    /// `[out, in]`
    pub(super) fn shape(&self) -> [usize; 2] {
        match self {
            Self::Dense { weights, .. } => [weights.dim(0) as usize, weights.dim(1) as usize],
            Self::Quantised(weights) => weights.shape(),
        }
    }
}

/// None where the kernels have not got the format.
fn quantised(stored: &Stored) -> Result<Option<Quantised>, Exception> {
    let format = Format {
        group_size: stored.quantisation.group_size,
        n_bits: stored.quantisation.bits,
    };
    let [words, scales, biases] = &stored.parts;
    let shape = [
        scales.dim(0) as usize,
        scales.dim(1) as usize * format.group_size,
    ];
    let words = slice(words)?;
    Ok(Quantised::new(
        shape,
        format,
        words,
        slice(scales)?,
        slice(biases)?,
    ))
}

/// The values of an array that lies row by row.
pub(super) fn slice<T: mlx_rs::ArrayElement>(array: &Array) -> Result<&[T], Exception> {
    array
        .try_as_slice()
        .map_err(|error| Exception::custom(error.to_string()))
}
