//! Who waits, who runs, and which rows the next step computes.

use super::{
    EngineConfig, Model, Row,
    prefixes::{MIN_SHARED, Prefixes, common},
    sequence::Sequence,
};
use std::collections::VecDeque;
use std::time::Duration;

pub(super) struct Scheduler {
    config: EngineConfig,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    prefixes: Prefixes,
    /// Most tokens that stay in the cache for prompts to come.
    most_kept: usize,
    /// Each sequence has a slot of its own.
    next_slot: u32,
}

/// How a sequence begins.
enum Start {
    /// With nothing, or with what it has computed.
    Own,
    /// With the first tokens of another slot.
    Shared { slot: u32, n_tokens: usize },
    /// Later: another sequence is computing a prompt that begins alike.
    Later,
}

impl Scheduler {
    /// `bytes_per_token` is what a token takes in the model's cache.
    pub(super) fn new(config: &EngineConfig, bytes_per_token: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: Vec::with_capacity(config.max_batch),
            prefixes: Prefixes::default(),
            most_kept: config.prefix_bytes / bytes_per_token.max(1),
            next_slot: 0,
            config: *config,
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

    /// Lets waiting sequences in, first come first served, while there is a
    /// place and what they hold fits the cache. `waited` is told how long those
    /// waited that are new.
    pub(super) fn admit(&mut self, waited: impl Fn(Duration)) {
        let mut free = self.free_tokens();
        while self.running.len() < self.config.max_batch
            && let Some(mut next) = self.waiting.pop_front_if(|next| next.claim() <= free)
        {
            free -= next.claim();
            next.slot = self.next_slot;
            self.next_slot = self.next_slot.wrapping_add(1);
            if next.is_new() {
                waited(next.submitted.elapsed());
            }
            self.running.push(next);
        }
    }

    /// Tokens of the cache that running sequences claim.
    pub(super) fn claimed_tokens(&self) -> usize {
        self.running.iter().map(Sequence::claim).sum()
    }

    /// Tokens of the cache that are kept for prompts to come.
    pub(super) fn kept_tokens(&self) -> usize {
        self.prefixes.n_tokens()
    }

    /// Tokens of the cache that running sequences do not claim.
    fn free_tokens(&self) -> usize {
        self.config.kv_tokens.saturating_sub(self.claimed_tokens())
    }

    /// Makes room in the cache for what running sequences hold now: what is
    /// kept for prompts to come goes first, then the youngest sequences, which
    /// wait and are computed again. One alone always has room. Returns how many
    /// had to go.
    pub(super) fn make_room(&mut self, model: &mut dyn Model) -> usize {
        let mut n_preempted = 0;
        let mut claimed: usize = self.running.iter().map(Sequence::claim).sum();
        while claimed > self.config.kv_tokens
            && self.running.len() > 1
            && let Some(youngest) = self.running.iter().rposition(Sequence::can_wait)
        {
            let mut sequence = self.running.remove(youngest);
            claimed -= sequence.claim();
            model.release(sequence.slot);
            sequence.start_over();
            self.waiting.push_front(sequence);
            n_preempted += 1;
        }
        self.prefixes.shrink(self.free_tokens(), model);
        n_preempted
    }

    /// Fills `rows` with the next step: every sequence that only lacks its
    /// newest token, with a draft of what follows it, and prompt tokens up to the
    /// chunk size, oldest sequence first. A prompt begins with what others have
    /// computed of it. Returns how many rows are no newest tokens or drafts.
    pub(super) fn schedule(&mut self, rows: &mut Vec<Row>, model: &mut dyn Model) -> usize {
        rows.clear();
        let chunk = self.config.prefill_chunk.max(1);
        let mut budget = chunk;
        let drafts = self.config.draft_rows.saturating_sub(self.running.len());
        let mut drafts = drafts.min(self.free_tokens().saturating_sub(self.prefixes.n_tokens()));
        for index in 0..self.running.len() {
            let start = self.start(index);
            let sequence = &mut self.running[index];
            match start {
                Start::Own => {}
                Start::Later => {
                    sequence.schedule(0);
                    continue;
                }
                Start::Shared { slot, n_tokens } => {
                    model.share(slot, sequence.slot, n_tokens as u32);
                    sequence.begin_with(n_tokens);
                }
            }
            let pending = sequence.pending().len();
            let count = if pending == 1 {
                1
            } else {
                let count = pending.min(budget);
                budget -= count;
                count
            };
            sequence.schedule(count);
            drafts -= sequence.draft(drafts);
            let first = sequence.computed();
            let tokens = sequence.scheduled().zip(first..);
            rows.extend(tokens.map(|(token, index)| Row {
                token,
                position: index as u32,
                slot: sequence.slot,
                wants_logits: sequence.wants_logits(index),
            }));
        }
        chunk - budget
    }

    /// Where the sequence at `index` finds most of its prompt. One that an
    /// older sequence is still computing is worth waiting for: it would be
    /// computed twice otherwise, and no sooner. What that one generates is not:
    /// it comes a token a step.
    fn start(&mut self, index: usize) -> Start {
        let (older, rest) = self.running.split_at(index);
        let Some(wanted) = rest.first().and_then(Sequence::shareable) else {
            return Start::Own;
        };
        let in_batch = older
            .iter()
            .map(|other| (other, common(other.offers(), wanted)))
            .reduce(|best, next| if next.1 > best.1 { next } else { best });
        let kept = self.prefixes.longest(wanted);
        match in_batch {
            Some((other, n_tokens)) if n_tokens >= kept.max(MIN_SHARED) => {
                if other.computed() < n_tokens {
                    return Start::Later;
                }
                Start::Shared {
                    slot: other.slot,
                    n_tokens,
                }
            }
            _ => match self.prefixes.find(wanted) {
                Some((slot, n_tokens)) => Start::Shared { slot, n_tokens },
                None => Start::Own,
            },
        }
    }

    /// Takes out the sequences that are finished. Their places are free again;
    /// what they have computed is kept as far as it may be.
    pub(super) fn retire(&mut self, model: &mut dyn Model) -> Vec<Sequence> {
        let (retired, running) = std::mem::take(&mut self.running)
            .into_iter()
            .partition::<Vec<_>, _>(|sequence| sequence.finished.is_some());
        self.running = running;
        for sequence in &retired {
            let computed = &sequence.context()[..sequence.computed()];
            if (MIN_SHARED..=self.most_kept).contains(&computed.len()) {
                self.prefixes.keep(computed, sequence.slot, model);
                let most = self.most_kept.min(self.free_tokens());
                self.prefixes.shrink(most, model);
            } else {
                model.release(sequence.slot);
            }
        }
        retired
    }

    /// Takes out everything.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Sequence> + '_ {
        self.running.drain(..).chain(self.waiting.drain(..))
    }
}
