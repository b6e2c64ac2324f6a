//! The tests of LU in one program, so that what they share is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod ring;
mod systems;
