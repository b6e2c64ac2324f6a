//! The tests of open clusters in one program, so that what they share is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod machines;
mod open_cluster;
mod placed_matrices;
