//! An allocator that counts, for benchmarks and tests: `#[global_allocator] static ALLOCATOR: Counting = Counting;`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count for each thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

thread_local! {
    // Without a destructor and without a first use that would allocate.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Allocations that the calling thread has asked a [`Counting`] for so far, growth of existing ones included.
#[must_use]
pub fn allocations() -> u64 {
    COUNT.get()
}

fn count() {
    COUNT.set(COUNT.get() + 1);
}

// SAFETY: every call goes to the system's allocator as it came; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that are asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_through_it_is_counted_and_works() {
        let before = allocations();
        let layout = Layout::from_size_align(64, 8).unwrap();
        let larger = Layout::from_size_align(128, 8).unwrap();
        // SAFETY: each pointer is used within its size and given back once with the layout it has then.
        unsafe {
            let pointer = Counting.alloc_zeroed(layout);
            assert_eq!(std::slice::from_raw_parts(pointer, 64), [0; 64]);
            let pointer = Counting.realloc(pointer, layout, 128);
            pointer.write_bytes(7, 128);
            Counting.dealloc(pointer, larger);
            let pointer = Counting.alloc(layout);
            Counting.dealloc(pointer, layout);
        }
        assert_eq!(allocations() - before, 3);
    }
}
