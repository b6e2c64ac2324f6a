//! The tests of the kernels in one program, so that what they share is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod bits;
mod combine;
mod common;
mod contract;
mod false_alarms;
mod lu;
mod strassen;
