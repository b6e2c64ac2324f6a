//! LU factorisation: owners of the columns, bound, prediction.
//!
//! Place in the flow: `bench hpl` and `solve` ask before they begin, for the threads of one machine (`machine.rs`) or for a
//! cluster (`cluster.rs`, from the times of single tasks in `tasks.rs`; `largest.rs` has the order that fills its memory). The
//! simulator asks for the same times.

mod cluster;
mod largest;
mod machine;
mod tasks;

pub use cluster::{
    ClusterEstimate, ColumnDeal, ComingColumns, DEPTH_MIN, LuCluster, LuMachine, LuPlan, LuPlanError,
    PartSizes,
};
pub use machine::{LuEstimate, LuRates, estimate_lu, estimate_mxp, mxp_seconds};
pub use tasks::{LuTaskModel, lu_operations};
