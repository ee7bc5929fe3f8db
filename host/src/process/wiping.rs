//! An allocator that can be told to wipe what is freed.
//!
//! A secret passes through buffers nobody names: of a parser, a formatter, a vector that grew. A process that hands
//! secrets out and then lives on without them turns this on, and no freed memory of it holds one.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

static WIPES: AtomicBool = AtomicBool::new(false);

/// Wipes everything that is freed from now on, in this process and for good.
pub fn wipe_what_is_freed() {
    WIPES.store(true, Ordering::Relaxed);
}

/// The system's allocator with that added. It costs one load for each free while it is off.
#[derive(Debug)]
pub struct Wiping;

// SAFETY: every call is the system allocator's own but for a growing block while wiping, which is the default of the
// trait: a new block, a copy of what fits, and the old block freed.
unsafe impl GlobalAlloc for Wiping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if WIPES.load(Ordering::Relaxed) {
            // SAFETY: the block is the caller's, `layout.size()` bytes long, and about to be given up.
            unsafe { std::ptr::write_bytes(block, 0, layout.size()) };
            // Or the writes would be dropped as useless.
            std::hint::black_box(block);
            compiler_fence(Ordering::SeqCst);
        }
        // SAFETY: the caller's promise about `block` and `layout` is passed on.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !WIPES.load(Ordering::Relaxed) {
            // SAFETY: as above.
            return unsafe { System.realloc(block, layout, size) };
        }
        // SAFETY: the caller promises that `size`, rounded up to the alignment, is a valid one.
        let grown = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: `grown` has a size other than zero, by the same promise.
        let new = unsafe { self.alloc(grown) };
        if !new.is_null() {
            // SAFETY: both blocks are at least this long, and one of them is new.
            unsafe { std::ptr::copy_nonoverlapping(block, new, layout.size().min(size)) };
            // SAFETY: the caller gives up the old block.
            unsafe { self.dealloc(block, layout) };
        }
        new
    }
}
