//! Descriptors that the event loop watches.
//!
//! Invariant: a descriptor is watched for as long as it is open, and no longer.
//!
//! Deliberately absent: reading and writing them.
#![allow(unsafe_code)] // The event loop takes any type's word for which descriptor it has; this one's can be taken.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor on the event loop of this thread.
pub(crate) fn watched(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` has the same descriptor from beginning to end, open all the while; the `AsyncFd` owns it and
    // gives it out by shared reference only, so it is not closed before it is watched no longer.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(Into::into)
}
