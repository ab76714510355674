//! Who waits, who runs, and which rows the next step computes.

use super::{EngineConfig, Row, sequence::Sequence};
use std::collections::VecDeque;

pub(super) struct Scheduler {
    prefill_chunk: usize,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    free_slots: Vec<u32>,
    free_tokens: usize,
}

impl Scheduler {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            prefill_chunk: config.prefill_chunk.max(1),
            waiting: VecDeque::new(),
            running: Vec::with_capacity(config.max_batch),
            free_slots: (0..config.max_batch as u32).rev().collect(),
            free_tokens: config.kv_tokens,
        }
    }

    pub(super) fn push(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn sequences(&mut self) -> &mut [Sequence] {
        &mut self.running
    }

    /// Takes out the waiting sequences whose readers are gone.
    pub(super) fn take_abandoned(&mut self) -> Vec<Sequence> {
        let (gone, kept) = self
            .waiting
            .drain(..)
            .partition::<Vec<_>, _>(Sequence::is_abandoned);
        self.waiting = kept.into();
        gone
    }

    /// Lets waiting sequences in, first come first served, while a slot is
    /// free and the most they can hold fits the cache.
    pub(super) fn admit(&mut self) {
        while let Some(mut next) = self.waiting.pop_front() {
            let fits = next.capacity() <= self.free_tokens;
            match self.free_slots.pop_if(|_| fits) {
                Some(slot) => {
                    self.free_tokens -= next.capacity();
                    next.slot = slot;
                    self.running.push(next);
                }
                None => return self.waiting.push_front(next),
            }
        }
    }

    /// Fills `rows` with the next step: every sequence that only lacks its
    /// newest token, and prompt tokens up to the chunk size, oldest sequence
    /// first.
    pub(super) fn schedule(&mut self, rows: &mut Vec<Row>) {
        rows.clear();
        let mut budget = self.prefill_chunk;
        for sequence in &mut self.running {
            let pending = sequence.pending().len();
            let count = if pending == 1 {
                1
            } else {
                let count = pending.min(budget);
                budget -= count;
                count
            };
            sequence.schedule(count);
            let first = sequence.computed();
            let tokens = sequence.pending()[..count].iter().zip(first..);
            rows.extend(tokens.map(|(&token, index)| Row {
                token,
                position: index as u32,
                slot: sequence.slot,
                wants_logits: sequence.wants_logits(index),
            }));
        }
    }

    /// Takes out the sequences that are finished; their slots and tokens are
    /// free again.
    pub(super) fn retire(&mut self) -> Vec<Sequence> {
        let mut retired = Vec::new();
        let mut i = 0;
        while i < self.running.len() {
            if self.running[i].finished.is_some() {
                let sequence = self.running.remove(i);
                self.free_slots.push(sequence.slot);
                self.free_tokens += sequence.capacity();
                retired.push(sequence);
            } else {
                i += 1;
            }
        }
        retired
    }

    /// Takes out everything.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Sequence> + '_ {
        self.running.drain(..).chain(self.waiting.drain(..))
    }
}
