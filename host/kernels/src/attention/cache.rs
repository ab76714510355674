//! Keys and values of all slots.

use std::{
    collections::{HashMap, HashSet},
    error, fmt,
    ops::Range,
    sync::Arc,
};

use crate::buffer::Buffer;

/// Positions in a block. A slot grows by a block at a time, for all layers at
/// once; nothing ever moves.
pub(super) const BLOCK: usize = 64;
/// Most rows that attend together.
pub(super) const RUN: usize = 8;

/// The sizes of a model's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub n_layers: usize,
    /// Query heads, a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Values in a head, a multiple of 8.
    pub head_dim: usize,
}

impl Shape {
    /// Values in a row of queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Values in a row of results.
    pub fn out_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Values in one head's keys, or values, in a block.
    pub(super) fn panel_len(&self) -> usize {
        BLOCK * self.head_dim
    }

    /// Values in one layer of a block.
    fn layer_len(&self) -> Option<usize> {
        self.head_dim
            .checked_mul(BLOCK)?
            .checked_mul(self.n_kv_heads)?
            .checked_mul(2)
    }

    fn block_len(&self) -> Option<usize> {
        self.layer_len()?.checked_mul(self.n_layers)
    }

    fn is_valid(&self) -> bool {
        let Self {
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
        } = *self;
        let some = n_layers > 0 && n_heads > 0 && n_kv_heads > 0 && head_dim > 0;
        some && n_heads.is_multiple_of(n_kv_heads)
            && head_dim.is_multiple_of(8)
            && self.block_len().is_some()
            && n_heads
                .checked_mul(3)
                .and_then(|n| n.checked_mul(head_dim))
                .is_some()
    }
}

/// Where a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The token's index in its sequence, from 0.
    pub position: u32,
    /// The sequence's place in the cache: any number, new ones begin empty.
    pub slot: u32,
}

/// Why a cache cannot be made or cannot take rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvError {
    /// Some size is 0, or not the multiple it must be, or too large.
    Shape(Shape),
    /// The row does not follow what its slot holds.
    Gap {
        place: Place,
        /// The highest position that would have been right.
        next: u32,
    },
    /// The system has no more memory.
    OutOfMemory {
        /// What was asked for.
        n_bytes: usize,
    },
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(shape) => write!(
                f,
                "no attention of this shape: {shape:?}; all sizes are above 0, n_heads is a \
                 multiple of n_kv_heads and head_dim a multiple of 8"
            ),
            Self::Gap {
                place: Place { position, slot },
                next,
            } => write!(
                f,
                "position {position} of slot {slot} does not follow what is there: position \
                 {next} comes next"
            ),
            Self::OutOfMemory { n_bytes } => {
                write!(
                    f,
                    "no memory for another {n_bytes} bytes of keys and values"
                )
            }
        }
    }
}

impl error::Error for KvError {}

/// A row of the current pass.
#[derive(Clone, Copy)]
pub(super) struct RowAt {
    pub(super) position: usize,
    /// Index in `tables`.
    table: usize,
}

/// A sequence's part of the cache.
#[derive(Default)]
struct Slot {
    /// Those of positions that several slots have in common are the same.
    blocks: Vec<Arc<Buffer>>,
    n_positions: usize,
}

/// Keys and values of many sequences, and the rows of the current pass.
///
/// A block holds for each layer the keys `[kv head][dim][position]` and then
/// the values `[kv head][position][dim]`: both are read in the order in which
/// they lie.
pub struct KvCache {
    shape: Shape,
    slots: HashMap<u32, Slot>,
    rows: Vec<RowAt>,
    /// The rows in groups of at most [`RUN`] that follow each other in a slot.
    runs: Vec<Range<usize>>,
    /// The start of each block, for each slot of the current pass.
    tables: Vec<Vec<*mut f32>>,
    /// The rotated queries of the layer at hand.
    queries: Vec<f32>,
}

// SAFETY: the pointers are to blocks that the cache owns.
unsafe impl Send for KvCache {}
// SAFETY: through a shared reference memory is written by this module's
// kernels only, under `attend`'s mutable borrow, each part by one thread.
unsafe impl Sync for KvCache {}

impl KvCache {
    /// # Errors
    /// When the shape is not valid.
    pub fn new(shape: Shape) -> Result<Self, KvError> {
        if !shape.is_valid() {
            return Err(KvError::Shape(shape));
        }
        let (slots, rows, runs, tables, queries) = Default::default();
        Ok(Self {
            shape,
            slots,
            rows,
            runs,
            tables,
            queries,
        })
    }

    /// Takes the rows of the next pass and makes room for them.
    ///
    /// The rows of a slot come in ascending order without gaps. The first may
    /// overwrite a position the slot already holds; what came after it is
    /// forgotten.
    ///
    /// # Errors
    /// When a row does not follow, or there is no memory. The pass then has no
    /// rows, and what the slots held before is unchanged.
    pub fn begin(&mut self, rows: &[Place]) -> Result<(), KvError> {
        self.end_pass();
        let passes = self.check(rows)?;
        for (&slot, &Pass { start, end, .. }) in &passes {
            self.make_room(slot, start, end)?;
        }
        self.tables.resize(passes.len(), Vec::new());
        for (&slot, &Pass { end, table, .. }) in &passes {
            if let Some(slot) = self.slots.get_mut(&slot) {
                slot.n_positions = end;
                self.tables[table] = slot.blocks.iter().map(|block| block.as_mut_ptr()).collect();
            }
        }
        self.rows.extend(rows.iter().map(|place| RowAt {
            position: place.position as usize,
            table: passes[&place.slot].table,
        }));
        for (r, row) in self.rows.iter().enumerate() {
            match self.runs.last_mut() {
                Some(run) if run.len() < RUN && self.rows[run.start].table == row.table => {
                    run.end = r + 1;
                }
                _ => self.runs.push(r..r + 1),
            }
        }
        Ok(())
    }

    fn end_pass(&mut self) {
        self.rows.clear();
        self.runs.clear();
        self.tables.clear();
    }

    /// Whether the rows follow; what the pass needs of each slot.
    fn check(&self, rows: &[Place]) -> Result<HashMap<u32, Pass>, KvError> {
        let mut passes: HashMap<u32, Pass> = HashMap::new();
        for &place in rows {
            let position = place.position as usize;
            let table = passes.len();
            let held = self
                .slots
                .get(&place.slot)
                .map_or(0, |slot| slot.n_positions);
            let (follows, next) = match passes.get(&place.slot) {
                Some(pass) => (position == pass.end, pass.end),
                None => (position <= held, held),
            };
            if !follows {
                return Err(KvError::Gap {
                    place,
                    next: next as u32,
                });
            }
            passes
                .entry(place.slot)
                .or_insert(Pass {
                    start: position,
                    end: 0,
                    table,
                })
                .end = position + 1;
        }
        Ok(passes)
    }

    /// Gives a slot blocks of its own for the positions from `start` to `end`.
    fn make_room(&mut self, slot: u32, start: usize, end: usize) -> Result<(), KvError> {
        let len = self.shape.block_len().ok_or(KvError::Shape(self.shape))?;
        let n_bytes = len.saturating_mul(size_of::<f32>());
        let new = || Buffer::new(len).ok_or(KvError::OutOfMemory { n_bytes });
        let slot = self.slots.entry(slot).or_default();
        for block in slot.blocks.iter_mut().skip(start / BLOCK) {
            if Arc::get_mut(block).is_none() {
                let mut copy = new()?;
                copy.copy_from(block);
                *block = Arc::new(copy);
            }
        }
        while slot.blocks.len() * BLOCK < end {
            slot.blocks.push(Arc::new(new()?));
        }
        Ok(())
    }

    /// Lets `slot` hold what `from` holds of the first `n_positions`, and
    /// nothing else. Both go on independently; what they have in common takes
    /// memory once. The current pass ends.
    pub fn share(&mut self, from: u32, slot: u32, n_positions: usize) {
        self.release(slot);
        let Some(source) = self.slots.get(&from) else {
            return;
        };
        let n_positions = n_positions.min(source.n_positions);
        let blocks = source.blocks.iter().take(n_positions.div_ceil(BLOCK));
        let shared = Slot {
            blocks: blocks.cloned().collect(),
            n_positions,
        };
        self.slots.insert(slot, shared);
    }

    /// Forgets a slot and gives its memory back. The current pass ends.
    pub fn release(&mut self, slot: u32) {
        self.end_pass();
        self.slots.remove(&slot);
    }

    /// Memory that the keys and values take.
    pub fn n_bytes(&self) -> usize {
        let blocks = self.slots.values().flat_map(|slot| &slot.blocks);
        let blocks: HashSet<_> = blocks.map(Arc::as_ptr).collect();
        let of_one = self.shape.block_len().unwrap_or(0) * size_of::<f32>();
        blocks.len() * of_one
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn rows(&self) -> &[RowAt] {
        &self.rows
    }

    pub(super) fn runs(&self) -> &[Range<usize>] {
        &self.runs
    }

    pub(super) fn queries_mut(&mut self) -> &mut Vec<f32> {
        &mut self.queries
    }

    /// The keys of one head in the block that holds `position` of the row's
    /// slot, `[dim][position]`; [`panel_len`](Shape::panel_len) values.
    pub(super) fn keys(&self, row: RowAt, position: usize, layer: usize, head: usize) -> *mut f32 {
        debug_assert!(position <= row.position && layer < self.shape.n_layers);
        let panel = self.shape.panel_len();
        let at = (2 * layer * self.shape.n_kv_heads + head) * panel;
        self.tables[row.table][position / BLOCK].wrapping_add(at)
    }

    /// The values likewise, `[position][dim]`.
    pub(super) fn values(
        &self,
        row: RowAt,
        position: usize,
        layer: usize,
        head: usize,
    ) -> *mut f32 {
        let panel = self.shape.panel_len();
        self.keys(row, position, layer, head)
            .wrapping_add(self.shape.n_kv_heads * panel)
    }
}

/// What a pass needs of a slot.
struct Pass {
    /// Its first position in it.
    start: usize,
    /// Positions that the slot holds after it.
    end: usize,
    table: usize,
}
