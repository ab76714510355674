//! Memory in large pages. Weights are read from end to end in each step, and each
//! page of 4 KiB has to be looked up first.

use std::ops::Range;

/// Bytes of a large page, where small ones have 4 KiB.
const LARGE: usize = 2 << 20;
/// Less than this is not worth asking for.
const LEAST: usize = 64 << 10;

/// Where `values` lie.
pub fn memory<T>(values: &[T]) -> Range<usize> {
    let Range { start, end } = values.as_ptr_range();
    start.addr()..end.addr()
}

/// Asks the system to move this memory to large pages, with what shares those. What
/// it holds stays as it is, and so does the memory where the system has no large
/// pages, or none left.
pub fn make_large(memory: impl IntoIterator<Item = Range<usize>>) {
    for pages in runs(memory) {
        collapse(pages);
    }
}

/// The large pages that some memory lies in, those side by side as one range.
fn runs(memory: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut all: Vec<_> = memory.into_iter().filter(|it| it.len() >= LEAST).collect();
    all.sort_by_key(|range| range.start);
    for Range { start, end } in all {
        let pages = start / LARGE * LARGE..end.next_multiple_of(LARGE);
        match runs.last_mut() {
            Some(last) if pages.start <= last.end => last.end = last.end.max(pages.end),
            _ => runs.push(pages),
        }
    }
    runs
}

/// One call for many pages: it ends at the first for which there is no memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn collapse(pages: Range<usize>) {
    let start = std::ptr::without_provenance_mut(pages.start);
    // SAFETY: this changes neither what any memory holds nor who may use it; what is
    // not mapped is left out.
    unsafe { libc::madvise(start, pages.len(), libc::MADV_COLLAPSE) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn collapse(_: Range<usize>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_side_by_side_are_one_range() {
        let at = |start: usize, end: usize| start << 10..end << 10;
        // 100 to 300 KiB, the rest of that page and the two that follow, a hole of one
        // page, and too little to count.
        let memory = [
            at(8300, 8400),
            at(100, 300),
            at(1500, 4100),
            at(20_000, 20_063),
        ];
        assert_eq!(runs(memory), [at(0, 6144), at(8192, 10_240)]);
        assert_eq!(runs([]), []);
    }

    /// Wherever it begins and ends, and beside memory of others.
    #[test]
    fn memory_keeps_what_it_holds() {
        for (len, at) in [(0, 0), (1, 1), (3 << 20, 0), (2 << 20, 12_345)] {
            let values: Vec<u32> = (0..at as u32 + len).collect();
            make_large([memory(&values[at..])]);
            assert!((0..).zip(&values).all(|(i, value)| i == *value));
        }
    }
}
