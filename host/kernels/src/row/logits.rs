//! Rows of logits, each with the largest value of every block of it, so that
//! whoever looks for the best tokens passes over most of a row without reading
//! it: a vocabulary is long, and a row that another processor has computed comes
//! slowly.

use std::fmt;

use super::{BLOCK, Scanned, block_maxima, prefetch_block};
use crate::{
    buffer::{Buffer, of_at_least},
    simd::{Kernel, Level, Simd},
};

/// Rows of logits of one width, one after the other, with the maxima of their
/// blocks of [`BLOCK`] values. A maximum is NaN where it is not known.
#[derive(Default)]
pub struct Logits {
    width: usize,
    n_values: usize,
    /// Blocks are whole cache lines.
    values: Option<Buffer>,
    maxima: Vec<f32>,
}

impl Logits {
    /// No rows.
    pub fn clear(&mut self) {
        self.n_values = 0;
        self.maxima.clear();
    }

    /// Makes room for `n_rows` rows of `width` values. Returns the values and the
    /// maxima of all rows, of any content, for somebody who knows both to write
    /// them.
    pub fn resize(&mut self, n_rows: usize, width: usize) -> (&mut [f32], &mut [f32]) {
        self.width = width;
        self.n_values = n_rows * width;
        self.maxima.resize(n_rows * width.div_ceil(BLOCK), f32::NAN);
        let values = of_at_least(&mut self.values, self.n_values);
        (
            &mut values.as_mut_slice()[..self.n_values],
            &mut self.maxima,
        )
    }

    /// Takes whole rows of `width` values, in place of those there are.
    ///
    /// # Panics
    /// When the last row is not whole.
    pub fn replace(&mut self, width: usize, values: &[f32]) {
        let n_rows = values.len().checked_div(width).unwrap_or(0);
        assert_eq!(n_rows * width, values.len(), "rows of {width} logits");
        let (to, maxima) = self.resize(n_rows, width);
        to.copy_from_slice(values);
        maxima.fill(f32::NAN);
    }

    /// The values of all rows.
    pub fn values(&self) -> &[f32] {
        let values = self.values.as_ref();
        values.map_or(&[], |values| &values.as_slice()[..self.n_values])
    }

    /// All rows.
    pub fn rows(&mut self) -> LogitsRows<'_> {
        let values = self.values.as_mut().map(Buffer::as_mut_slice);
        LogitsRows {
            width: self.width,
            values: values.map_or(&mut [], |values| &mut values[..self.n_values]),
            maxima: &mut self.maxima,
        }
    }

    /// The first row, empty if there is none.
    pub fn row(&mut self) -> LogitsRow<'_> {
        self.rows().next().unwrap_or_default()
    }
}

impl From<&[f32]> for Logits {
    /// One row.
    fn from(values: &[f32]) -> Self {
        let mut row = Self::default();
        row.replace(values.len(), values);
        row
    }
}

/// Some rows of [`Logits`], in order.
#[derive(Debug, Default)]
pub struct LogitsRows<'a> {
    width: usize,
    values: &'a mut [f32],
    maxima: &'a mut [f32],
}

impl LogitsRows<'_> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Takes the first `n_rows` off, or as many as there are.
    #[must_use]
    pub fn take_rows(&mut self, n_rows: usize) -> Self {
        let n_values = n_rows.saturating_mul(self.width).min(self.values.len());
        let n_blocks = n_rows.saturating_mul(self.width.div_ceil(BLOCK));
        let n_blocks = n_blocks.min(self.maxima.len());
        Self {
            width: self.width,
            values: self.values.split_off_mut(..n_values).unwrap_or_default(),
            maxima: self.maxima.split_off_mut(..n_blocks).unwrap_or_default(),
        }
    }
}

impl<'a> Iterator for LogitsRows<'a> {
    type Item = LogitsRow<'a>;

    fn next(&mut self) -> Option<LogitsRow<'a>> {
        let LogitsRows { values, maxima, .. } = self.take_rows(1);
        (!values.is_empty()).then_some(LogitsRow { values, maxima })
    }
}

/// One row of logits, of which the largest value of every block is known but
/// where it was changed.
#[derive(Debug, Default)]
pub struct LogitsRow<'a> {
    values: &'a mut [f32],
    maxima: &'a mut [f32],
}

impl<'a> LogitsRow<'a> {
    /// A row of which nothing is known yet; `maxima` is room for what will be.
    pub fn new(values: &'a mut [f32], maxima: &'a mut Vec<f32>) -> Self {
        maxima.clear();
        maxima.resize(values.len().div_ceil(BLOCK), f32::NAN);
        Self { values, maxima }
    }

    /// The logits by id.
    pub fn values(&self) -> &[f32] {
        self.values
    }

    /// Lets `change` change any value.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut [f32]) -> R) -> R {
        self.maxima.fill(f32::NAN);
        change(self.values)
    }

    /// Lets `change` change the values of these ids, and no others.
    pub fn change_at<R>(
        &mut self,
        ids: impl IntoIterator<Item = u32>,
        change: impl FnOnce(&mut [f32]) -> R,
    ) -> R {
        Level::best().run(Forget {
            ids: ids.into_iter(),
            values: self.values,
            maxima: self.maxima,
        });
        change(self.values)
    }

    /// Bans all ids from `end` on.
    pub fn ban_from(&mut self, end: usize) {
        if let Some(banned) = self.values.get_mut(end..)
            && !banned.is_empty()
        {
            banned.fill(f32::NEG_INFINITY);
            self.maxima[end / BLOCK..].fill(f32::NAN);
        }
    }

    /// Finds the maxima that are not known.
    ///
    /// # Errors
    /// The first logit that is NaN or positive infinity.
    pub fn scan(&mut self) -> Result<Scanned<'_>, BadLogit> {
        Level::best().run(FillIn {
            values: self.values,
            maxima: self.maxima,
        })?;
        Ok(Scanned::new(self.values, self.maxima))
    }
}

/// Finds the maxima of a row that nobody keeps any of; `maxima` is room for them.
///
/// # Errors
/// The first logit that is NaN or positive infinity.
pub fn scan<'a>(values: &'a [f32], maxima: &'a mut Vec<f32>) -> Result<Scanned<'a>, BadLogit> {
    maxima.clear();
    maxima.resize(values.len().div_ceil(BLOCK), f32::NAN);
    Level::best().run(FillIn { values, maxima })?;
    Ok(Scanned::new(values, maxima))
}

/// A logit that no row may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BadLogit {
    /// Whose it is.
    pub id: usize,
    /// NaN or positive infinity.
    pub value: f32,
}

impl fmt::Display for BadLogit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the logit of the token {} is {}", self.id, self.value)
    }
}

impl std::error::Error for BadLogit {}

/// Forgets the maxima of the blocks of some ids. The blocks are changed and looked
/// at next: they are asked for at once, for they may come from afar.
struct Forget<'a, I> {
    ids: I,
    values: &'a [f32],
    maxima: &'a mut [f32],
}

impl<I: Iterator<Item = u32>> Kernel for Forget<'_, I> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for id in self.ids {
            let block = id as usize / BLOCK;
            if let Some(maximum) = self.maxima.get_mut(block)
                && !maximum.is_nan()
            {
                *maximum = f32::NAN;
                prefetch_block(s, self.values, block);
            }
        }
    }
}

/// Finds the maxima that are NaN.
pub(super) struct FillIn<'a> {
    pub(super) values: &'a [f32],
    pub(super) maxima: &'a mut [f32],
}

impl Kernel for FillIn<'_> {
    type Output = Result<(), BadLogit>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let Self { values, maxima } = self;
        let lowest = s.splat(f32::NEG_INFINITY);
        for at in (0..maxima.len()).step_by(S::LANES) {
            let n = S::LANES.min(maxima.len() - at);
            // SAFETY: n maxima from `at` are within them.
            let known = s.at_least(
                unsafe { super::load(s, maxima.as_ptr().add(at), n) },
                lowest,
            );
            let mut unknown = !known & (u32::MAX >> (32 - n));
            while unknown != 0 {
                let block = at + unknown.trailing_zeros() as usize;
                unknown &= unknown - 1;
                let start = block * BLOCK;
                let end = values.len().min(start + BLOCK);
                block_maxima(s, &values[start..end], &mut maxima[block..=block]);
                if maxima[block].is_nan() {
                    return super::check(&values[start..end]).map_err(|bad| BadLogit {
                        id: start + bad.id,
                        ..bad
                    });
                }
            }
        }
        Ok(())
    }
}
