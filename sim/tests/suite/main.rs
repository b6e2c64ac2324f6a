//! The integration tests of the simulator as one program: common code is compiled and linked once.

#![allow(clippy::unwrap_used)] // A test may panic.

mod again;
mod any_order;
mod arrays;
mod drawn;
mod faults;
mod losses;
mod lu;
mod lu_timing;
mod mutants;
mod products;
mod resume;
mod seeds;
mod swarm;
mod waiting_sums;
