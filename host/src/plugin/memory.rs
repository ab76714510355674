//! How much memory a plugin's instance, and all of them together, may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use wasmtime::ResourceLimiter;

use super::fault::{HostFault, kind};
use super::runtime::MAX_TABLE_ELEMENTS;

/// What all instances of a runtime have taken, in bytes, and may take.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    used_bytes: AtomicUsize,
    n_refused: AtomicU64,
    limit_bytes: usize,
}

impl MemoryBudget {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            used_bytes: AtomicUsize::new(0),
            n_refused: AtomicU64::new(0),
            limit_bytes,
        }
    }

    /// How often more was asked for than was left.
    pub(super) fn n_refused(&self) -> u64 {
        self.n_refused.load(Ordering::Relaxed)
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes)
                    .filter(|&sum| sum <= self.limit_bytes)
            })
            .is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The limits of one instance. A growth that is refused traps at once: a
/// guest that is told of it only retries or aborts less clearly.
#[derive(Debug)]
pub(super) struct MemoryLimiter {
    /// That of all plugins, that of an uploaded one's name, and its own.
    budgets: Vec<Arc<MemoryBudget>>,
    used_bytes: usize,
    limit_bytes: usize,
    n_elements: usize,
}

impl MemoryLimiter {
    pub(super) fn new(budgets: Vec<Arc<MemoryBudget>>, limit_bytes: usize) -> Self {
        Self {
            budgets,
            used_bytes: 0,
            limit_bytes,
            n_elements: 0,
        }
    }
}

impl Drop for MemoryLimiter {
    fn drop(&mut self) {
        for budget in &self.budgets {
            budget.give_back(self.used_bytes);
        }
    }
}

impl ResourceLimiter for MemoryLimiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current);
        let sum = self.used_bytes.saturating_add(more);
        let limit = self.limit_bytes;
        if sum > limit {
            let message = format!("its memory would grow to {sum} bytes, the limit is {limit}");
            return Err(HostFault::new(kind::MEMORY, message).into());
        }
        if let Some(maximum) = maximum.filter(|&maximum| desired > maximum) {
            let message =
                format!("its memory would grow to {desired} bytes, it declares at most {maximum}");
            return Err(HostFault::new(kind::MEMORY, message).into());
        }
        for (taken, budget) in self.budgets.iter().enumerate() {
            if budget.take(more) {
                continue;
            }
            for budget in &self.budgets[..taken] {
                budget.give_back(more);
            }
            budget.n_refused.fetch_add(1, Ordering::Relaxed);
            let limit = budget.limit_bytes;
            let whose = if taken == 0 {
                "that all plugins share"
            } else {
                "that the plugins of its name share"
            };
            let message = format!(
                "its memory would grow by {more} bytes, more than is left of the {limit} bytes \
                 {whose}"
            );
            return Err(HostFault::new(kind::NO_ROOM, message).into());
        }
        self.used_bytes = sum;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(HostFault::new(kind::MEMORY, format!("its memory could not grow: {error}")).into())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let sum = self
            .n_elements
            .saturating_add(desired.saturating_sub(current));
        if sum > MAX_TABLE_ELEMENTS {
            let message =
                format!("its tables would hold {sum} elements, the limit is {MAX_TABLE_ELEMENTS}");
            return Err(HostFault::new(kind::MEMORY, message).into());
        }
        self.n_elements = sum;
        Ok(true)
    }

    fn table_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(HostFault::new(kind::MEMORY, format!("a table could not grow: {error}")).into())
    }

    // What a component has of these is known before it is instantiated, and
    // checked then, with the numbers.

    fn instances(&self) -> usize {
        usize::MAX
    }

    fn memories(&self) -> usize {
        usize::MAX
    }

    fn tables(&self) -> usize {
        usize::MAX
    }
}
