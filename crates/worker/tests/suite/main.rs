//! The integration tests of the worker against clients by hand as one program: common code is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod client;
mod connections;
mod huge;
mod relay;
mod sessions;
mod strassen;
