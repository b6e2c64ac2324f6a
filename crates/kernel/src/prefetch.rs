//! A hint that memory is needed soon.
//!
//! Place in the flow: copies and packing ask for lines that lie so far apart that no processor predicts them. Register tiles and
//! products of rows, which are vector code of one architecture, have instructions of their own.
//!
//! Deliberately absent: architectures other than x86-64, on which nothing is measured.
#![allow(unsafe_code)] // The instruction takes a pointer.

/// Asks for the cache line of an element. Any address may be given.
#[inline(always)]
pub(crate) fn prefetch<T>(element: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint for any address, which every x86-64 processor has.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(element.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = element;
}
