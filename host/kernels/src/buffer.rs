//! Zeroed f32 memory that starts on a cache line.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    cell::RefCell,
    ptr::NonNull,
    slice,
};

/// Bytes of a cache line, and of the widest vector.
const LINE: usize = 64;

/// A fixed number of f32, zero at first. The system gives the memory page by
/// page as it is touched.
pub(crate) struct Buffer {
    start: NonNull<f32>,
    len: usize,
    raw: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, as a `Box<[f32]>` does.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared access only reads, or is under `as_mut_ptr`'s terms.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `None` when there is no memory for it.
    pub(crate) fn new(len: usize) -> Option<Self> {
        // Aligned by hand: asked for alignment, the allocator would clear the
        // memory itself and so touch all of it.
        let layout = Layout::array::<f32>(len.checked_add(LINE / 4)?).ok()?;
        // SAFETY: the layout has a size above zero.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = raw.as_ptr().align_offset(LINE);
        // SAFETY: `skip` is below a line, and the allocation is a line longer
        // than `len`; it is a multiple of 4, as the layout is aligned to 4.
        let start = unsafe { raw.add(skip) }.cast::<f32>();
        Some(Self {
            start,
            len,
            raw,
            layout,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes over the content of another of the same length, which nobody
    /// writes to meanwhile.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        assert_eq!(self.len, other.len, "buffers of one length");
        // SAFETY: both are that long, and each is memory of its own.
        unsafe { self.start.copy_from_nonoverlapping(other.start, self.len) };
    }

    pub(crate) fn as_slice(&self) -> &[f32] {
        // SAFETY: it has that many values, and whoever writes through
        // `as_mut_ptr` sees to it that nobody reads them meanwhile.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as above, and it is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Whoever writes through it sees to it that nobody else uses the same
    /// elements meanwhile.
    pub(crate) fn as_mut_ptr(&self) -> *mut f32 {
        self.start.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.raw.as_ptr(), self.layout) };
    }
}

thread_local! {
    static OWN: Scratch = const { RefCell::new(None) };
    static SHARED: Scratch = const { RefCell::new(None) };
}

type Scratch = RefCell<Option<Buffer>>;

/// Lends `work` at least `len` f32 of this thread's own, of any content, from
/// the start of a cache line. Must not be nested. Ends the process when there
/// is no memory, as every `Vec` does.
pub(crate) fn with_scratch<R>(len: usize, work: impl FnOnce(*mut f32) -> R) -> R {
    OWN.with(|scratch| lend(scratch, len, work))
}

/// As [`with_scratch`], for memory that other threads use too while `work`
/// runs; within it each thread can have its own.
pub(crate) fn with_shared_scratch<R>(len: usize, work: impl FnOnce(*mut f32) -> R) -> R {
    SHARED.with(|scratch| lend(scratch, len, work))
}

fn lend<R>(scratch: &Scratch, len: usize, work: impl FnOnce(*mut f32) -> R) -> R {
    work(of_at_least(&mut scratch.borrow_mut(), len).as_mut_ptr())
}

/// A buffer of at least `len` values: the one there is, or a larger one, without
/// its content, in its place. Ends the process when there is no memory.
pub(crate) fn of_at_least(buffer: &mut Option<Buffer>, len: usize) -> &mut Buffer {
    if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
        *buffer = None; // gives the memory back first
    }
    let new = || {
        let len = len.next_power_of_two();
        Buffer::new(len).unwrap_or_else(|| handle_alloc_error(Layout::new::<f32>()))
    };
    buffer.get_or_insert_with(new)
}
