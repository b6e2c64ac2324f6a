//! Hands memory that nobody uses any more back to the system.
//!
//! Place in the flow: matrices below the size that has pages of its own (`memory.rs`) lie with the allocator, and a session
//! may have as many of them as its grant allows. When it has ended, its worker asks for this.
//!
//! Why: the allocator of the C library gives back by itself only what is free at the end of its heap. One small block of
//! another session above it is enough, and all that lies below stays with a process that does nothing, beside what later
//! sessions are granted.
//!
//! Deliberately absent: other C libraries than GNU's. What they keep is up to them.
#![allow(unsafe_code)] // A function of the C library.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod gnu {
    // SAFETY: as its manual has it: it takes a number, gives one, may be called by any thread at any time, and changes
    // nothing that is in use.
    unsafe extern "C" {
        pub(super) safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
}

/// Gives pages that only free memory is on back to the system; what is in use stays as it is. Takes 10 to 20
/// milliseconds for each hundred megabytes that are given back, and else hardly anything.
pub fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    let _ = gnu::malloc_trim(0);
}
