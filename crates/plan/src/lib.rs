//! How a product is cut: from shapes, machines and their memory to a `Plan` that is plain data.
//!
//! Place in the flow: after the operands are known and the workers have said what they are, before the
//! first byte is sent. The schedule walks the plan; the cost model walks the same plan.
//!
//! Invariants: the tile grid depends on m, n, k and the element type only, never on the machines, so C
//! has the same bits however many workers there are. Every tile of C belongs to exactly one block. A
//! block's memory need is known before anything is sent, and fits its machine.
//!
//! Deliberately absent: sockets, files, threads, clocks, randomness. Speeds and memory are arguments.

mod bound;
mod charge;
mod cost;
mod cut;
mod decide;
mod early;
mod extent;
mod form;
mod grid;
mod memory;
mod problem;
mod region;
mod said;
mod search;
mod strategy;
mod team;
mod tiles;
mod winograd;

pub use bound::{Binding, Bound, words_each, words_flat};
pub use charge::{MATRIX_BYTES_MIN, USE_BYTES, charged_bytes};
pub use cost::{Limit, MachineCost, Prediction};
pub use cut::partition;
pub use decide::{Considered, Decision, LeftOut, PlanError, Preference, Relay, Wish, decide, memory_to_ask};
pub use early::Making;
pub use extent::{Extent, Objection};
pub use form::{Block, BlockSize, Member, NoPlan, Order, Plan, Share, Sums};
pub use grid::{Cut, Grid, GridError};
pub use memory::memory_wanted;
pub use problem::{LinkRate, Machine, Problem};
pub use region::Region;
pub use strategy::{Base, LEVELS_MAX, Strategy};
pub use winograd::{Part, Recipe, Results, Side, Sum, Term};

#[cfg(test)]
mod tests;
