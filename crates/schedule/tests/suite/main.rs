//! The tests of the worker's state machine in one program, so that what they share is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod worker_alone;
mod worker_relay;
mod worker_waits;
