//! The integration tests of the worker's state machine as one program: common code is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod worker_alone;
mod worker_relay;
mod worker_waits;
