//! Returns unused memory to the system.
//!
//! Place in the flow: matrices too small for pages of their own (`memory.rs`) are on the heap, and a session may
//! have as many of them as its grant allows. After a session its worker calls this.
//!
//! Reason: the C library's allocator returns by itself only free memory at the end of its heap. One small block of
//! another session above it is enough to keep all memory below it in an idle process, in addition to the grants of
//! later sessions.
//!
//! Deliberately absent: C libraries other than GNU's. They decide themselves which memory they keep.
#![allow(unsafe_code)] // A function of the C library.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod gnu {
    // SAFETY: according to its manual it takes and returns a number, may be called by any thread at any time, and
    // does not change allocated memory.
    unsafe extern "C" {
        pub(super) safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
}

/// Returns pages that contain only free memory to the system; allocated memory is unchanged. Takes 10 to 20
/// milliseconds per hundred megabytes returned, and otherwise hardly any time.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    let _ = gnu::malloc_trim(0);
}
