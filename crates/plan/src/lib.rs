//! Planning: from shapes, machines and their memory to a `Plan` that is plain data.
//!
//! Place in the flow: after the operands are known and the workers have described themselves, before the first byte
//! is sent. The schedule walks the plan; the cost model walks the same plan.
//!
//! Invariants: the tile grid depends on m, n, k and the element type only, never on the machines, so C has the same
//! bits for any number of workers. Every tile of C belongs to exactly one block. The memory that a block needs is
//! known before anything is sent, and its machine has that much.
//!
//! Deliberately absent: sockets, files, threads, clocks, randomness. Speeds and memory are arguments.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod bound;
mod charge;
mod cost;
mod cut;
mod decide;
mod early;
mod explain;
mod extent;
mod form;
mod grid;
mod layout;
mod lu;
mod making;
mod measuring;
mod memory;
mod neighbours;
mod ownership;
mod problem;
mod reduce;
mod region;
mod resident;
mod search;
mod strategy;
mod team;
mod tiles;
mod winograd;

pub use bound::{Binding, Bound, words_each, words_flat};
pub use charge::{MATRIX_BYTES_MIN, USE_BYTES, charged_bytes};
pub use cost::{Limit, MachineCost, Prediction};
pub use cut::partition;
pub use decide::{
    Considered, Decision, PlanError, PlanOptions, Preference, Relay, UnusedMachine, decide, memory_to_ask,
};
pub use early::MadeOperands;
pub use extent::{Extent, StrassenObjection};
pub use form::{Block, BlockSize, InvalidPlan, Member, PanelOrder, Plan, Share, Sums};
pub use grid::{Grid, GridError, TileSize};
pub use layout::{
    ArrayLayout, LATTICE, LayoutError, NoRoomForArray, PartHolder, PlacedPart, Placement, ShardAxis,
    ShardUnits,
};
pub use lu::{
    ClusterEstimate, ColumnDeal, ComingColumns, DEPTH_MIN, LuCluster, LuEstimate, LuMachine, LuPlan,
    LuPlanError, LuRates, LuTaskModel, PartSizes, estimate_lu, estimate_mxp, lu_operations, mxp_seconds,
};
pub use making::{
    MadeOperand, MadePiece, Making, MakingForm, MakingStep, PartOfMaking, PieceSource, SumBlock, SumPipeline,
    SumStage, UnmadePart, links_are_worth, spreading_is_worth, travel_bytes,
};
pub use measuring::pays_to_measure_together;
pub use memory::{memory_needed, memory_wanted};
pub use neighbours::{neighbour_pairs, neighbours_of_each};
pub use ownership::{MissingPart, OwnedSpan, Ownership, ProductSide};
pub use problem::{LinkRate, Machine, MemoryRate, OperandSource, Problem};
pub use reduce::{ReduceObjection, ReduceShare, ReducedRole, product_roles, travel_blocks};
pub use region::Region;
pub use resident::{decide_resident, memory_to_ask_resident};
pub use strategy::{Base, LEVELS_MAX, Strategy};
pub use winograd::{OperandRecipe, Recipe, ResultRecipe, ResultTerm, Sum, Term};

#[cfg(test)]
mod tests;
