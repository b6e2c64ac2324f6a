//! The tests of the worker against clients by hand in one program, so that what they share is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod client;
mod connections;
mod relay;
mod sessions;
mod strassen;
