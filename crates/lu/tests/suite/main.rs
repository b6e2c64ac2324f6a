//! The integration tests of LU as one program: common code is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod ring;
mod systems;
