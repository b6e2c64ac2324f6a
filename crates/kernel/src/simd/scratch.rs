//! Memory for packed blocks.
//!
//! Place in the flow: [`super::integer`] and `super::packed` pack operands into it.
//!
//! Invariants: it starts on a cache line. Each thread keeps its own, because new memory for each product would cost page faults.
#![allow(unsafe_code)] // One piece of memory holds elements of several types.

use std::cell::RefCell;

/// A cache line, so that packed panels start on one.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheLine {
    _bytes: [u8; 64],
}

thread_local! {
    static SCRATCH: RefCell<Vec<CacheLine>> = const { RefCell::new(Vec::new()) };
}

/// Calls `with` with this thread's memory for `len` words, whose values are arbitrary. Panics if `with` calls it again.
///
/// # Safety
/// Any bytes are a valid `T`.
pub(super) unsafe fn with_scratch<T: Copy>(len: usize, with: impl FnOnce(&mut [T])) {
    const { assert!(align_of::<T>() <= align_of::<CacheLine>()) };
    SCRATCH.with_borrow_mut(|scratch| {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<CacheLine>());
        if scratch.len() < lines {
            scratch.resize(lines, CacheLine { _bytes: [0; 64] });
        }
        // SAFETY: the memory is exclusive for this borrow, aligned and long enough, and initialised; the caller promises that any
        // bytes are valid.
        with(unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<T>(), len) });
    });
}
