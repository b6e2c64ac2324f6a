//! Counts the memory of a target, so that a target which exceeds its bound fails.
//!
//! Invariants: counts are kept by thread, so tests may run side by side; a request beyond `CEILING_BYTES` is
//! refused, whatever the target's bound is, so that no input can hurt the machine.
//!
//! Deliberately absent: memory of the fuzzer itself, which has an allocator of its own.
#![allow(unsafe_code)] // An allocator is unsafe by nature: it hands every call on to the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Larger requests are refused.
const CEILING_BYTES: usize = 256 << 20;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn took(bytes: usize) {
    // A thread that is ending has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get().saturating_add(bytes));
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn gave(bytes: usize) {
    // This thread may free another thread's memory.
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(bytes)));
}

// SAFETY: every call is forwarded to the system's allocator unchanged; a null pointer is an allowed answer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        if layout.size() > CEILING_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        if layout.size() > CEILING_BYTES {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        took(bytes);
        if bytes > CEILING_BYTES {
            return std::ptr::null_mut();
        }
        gave(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Runs `work` and panics where it held more than `bound_bytes` at any moment, or asked for it.
pub fn within(bound_bytes: usize, work: impl FnOnce()) {
    let before = HELD.get();
    PEAK.set(before);
    work();
    let peak_bytes = PEAK.get() - before;
    assert!(peak_bytes <= bound_bytes, "{peak_bytes} bytes were held at once, {bound_bytes} are allowed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_and_too_much_is_a_failure() {
        let take = |bytes: usize| move || drop(std::hint::black_box(vec![1u8; bytes]));
        within(1000, take(1000));
        assert!(std::panic::catch_unwind(|| within(999, take(1000))).is_err());
        let absurd = || {
            let mut asked: Vec<u8> = Vec::new();
            assert!(asked.try_reserve_exact(CEILING_BYTES + 1).is_err());
        };
        assert!(std::panic::catch_unwind(|| within(CEILING_BYTES, absurd)).is_err(), "asking is enough");
    }
}
