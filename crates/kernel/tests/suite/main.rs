//! The integration tests of the kernels as one program: common code is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod bits;
mod combine;
mod common;
mod contract;
mod false_alarms;
mod lu;
mod strassen;
