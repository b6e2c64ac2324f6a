//! The integration tests of open clusters as one program: common code is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod machines;
mod open_cluster;
mod placed_matrices;
