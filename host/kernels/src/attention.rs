//! Attention over rows of any sequences, and the cache of their keys and
//! values.
//!
//! A forward pass has rows, each a token at a position of a slot; prefill and
//! decode rows mix. [`KvCache::begin`] takes them once, [`KvCache::attend`]
//! computes one layer: it rotates queries and keys, writes all keys and values,
//! and only then attends, so that a row sees every earlier position of its
//! slot, those of the same pass included.
//!
//! The cache is `Send`. Where the kernels run on a thread of MLX while the
//! engine's thread waits, share it as `Arc<Mutex<KvCache>>`: there is never
//! contention, and a lock for each layer costs nothing that shows.

mod attend;
mod cache;
mod write;

pub use cache::{KvCache, KvError, Place, Shape};

use crate::{buffer::with_scratch, pool::Pool, simd::Level};
use attend::Attend;
use write::Write;

/// How a layer attends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    /// What products of query and key are multiplied by, commonly
    /// 1 / √`head_dim`.
    pub scale: f32,
    /// How many positions a row sees, itself included; all if `None`.
    pub window: Option<u32>,
}

/// Below this many multiplications a second thread costs more than it brings.
const WORTH_A_THREAD: usize = 64 * 1024;

impl KvCache {
    /// One layer's attention for the rows of the last [`begin`](Self::begin).
    ///
    /// - `qkv`: for each row the query heads, then the key heads, then the
    ///   value heads, `head_dim` values each. The rotation pairs value i of a
    ///   head with value i + r, r being the number of pairs ("half-split").
    /// - `cos`, `sin`: for each row r values, see
    ///   [`rope_tables`](crate::ops::rope_tables). Where 2 r is less than
    ///   `head_dim`, the rest of a head is not rotated.
    /// - `out`: for each row the query heads' results.
    ///
    /// # Panics
    /// When there is no such layer or a slice is not as long as the rows of the
    /// pass require.
    pub fn attend(
        &mut self,
        layer: usize,
        kernel: Kernel,
        qkv: &[f32],
        cos: &[f32],
        sin: &[f32],
        out: &mut [f32],
    ) {
        self.attend_on(
            Level::best(),
            Pool::shared(),
            layer,
            kernel,
            [qkv, cos, sin],
            out,
        );
    }

    fn attend_on(
        &mut self,
        level: Level,
        pool: &Pool,
        layer: usize,
        kernel: Kernel,
        [qkv, cos, sin]: [&[f32]; 3],
        out: &mut [f32],
    ) {
        let shape = *self.shape();
        let n_rows = self.rows().len();
        assert!(layer < shape.n_layers, "there is no layer {layer}");
        assert_eq!(
            qkv.len(),
            n_rows * shape.qkv_width(),
            "queries, keys and values"
        );
        assert_eq!(out.len(), n_rows * shape.out_width(), "output");
        assert_eq!(cos.len(), sin.len(), "cosines and sines");
        let n_pairs = cos.len().checked_div(n_rows).unwrap_or(0);
        assert_eq!(cos.len(), n_rows * n_pairs, "cosines");
        assert!(2 * n_pairs <= shape.head_dim, "more pairs than a head has");
        if n_rows == 0 {
            return;
        }
        self.queries_mut().resize(n_rows * shape.out_width(), 0.0);
        let queries = self.queries_mut().as_mut_ptr();
        let write = Write {
            cache: self,
            layer,
            qkv,
            cos,
            sin,
            n_pairs,
            scale: kernel.scale,
            queries,
        };
        let n_threads = threads(pool, qkv.len());
        let height = if n_threads == 1 { n_rows } else { 8 };
        pool.for_each(n_rows.div_ceil(height), n_threads, |piece| {
            level.run(write.rows(piece * height..((piece + 1) * height).min(n_rows)));
        });

        let attend = Attend {
            cache: self,
            layer,
            window: kernel.window,
            queries,
            out: out.as_mut_ptr(),
        };
        let n_seen: usize = self
            .rows()
            .iter()
            .map(|row| attend.seen(row.position).len())
            .sum();
        let n_threads = threads(pool, n_seen * shape.out_width());
        // Head by head, so that its keys and values stay in the cache; later
        // positions, which cost more, come first.
        let runs = self.runs();
        pool.for_each(runs.len() * shape.n_kv_heads, n_threads, |unit| {
            let rows = runs[runs.len() - 1 - unit % runs.len()].clone();
            let unit = attend.unit(rows, unit / runs.len());
            with_scratch(unit.n_scores(), |scores| {
                // SAFETY: the scratch is this thread's, as long as asked for,
                // and each unit is dealt once.
                level.run(unsafe { unit.with(scores) });
            });
        });
    }
}

fn threads(pool: &Pool, work: usize) -> usize {
    (work / WORTH_A_THREAD).clamp(1, pool.n_threads())
}

#[cfg(test)]
mod tests;
