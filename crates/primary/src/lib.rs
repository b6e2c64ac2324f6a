//! The primary's shell: operands, output and links around the schedule's state machine of the primary.
//!
//! Place in the flow: `cli` passes operands and links in; a verified C and a report come out. The primary opens and measures
//! sessions, makes a plan, executes it, and checks C.
//!
//! Invariants: panels are sent from their place in memory and tiles land in their place in the output; only converted and
//! transposed elements are copied. A product ends with a verified C, or with an error that names the machine; every wait has a
//! deadline. Complete tiles are kept for a run that resumes this one.
//!
//! Deliberately absent: knowledge of a worker's inside (the shells meet on the wire; threads of this process are a worker like
//! any other, over a link that shares memory), command lines, terminals.

mod account;
mod bandwidth;
mod bodies;
mod cluster;
mod elementwise;
mod error;
mod gathering;
mod inspector;
mod levels;
mod measure;
mod neighbours;
mod opening;
mod partial_sums;
mod product;
mod reductions;
mod resume;
mod run;
mod stop;
mod strassen;
mod survey;
mod system;

pub use account::{
    CheckReport, IoUse, JoinedMachine, MachineLoss, MachineReport, MovedWork, PlanReport, ProductProgress,
    RelayReport, Report, TeamChanges, ThreadUse, Unreachable, VerifyReport, WrongTiles,
};
pub use cluster::{
    ArrayId, Cluster, ClusterOptions, PartReport, PlacedOperand, PutReport, PutRequest, ReduceReport,
    ReduceRequest, ReduceSubject, multiply,
};
pub use elementwise::{Scaled, scaled_sum};
pub use error::{PrimaryError, off_loop};
pub use neighbours::SecretSource;
pub use product::{
    CheckRequest, Finished, MachineLink, MachineLinks, ProductObserver, ProductOperand, Request,
    SessionRequest, prepare_resume,
};
pub use reductions::reduced;
pub use resume::Resumed;
pub use stop::Stop;
pub use survey::{Survey, Surveyed, survey, wait_for_welcomes};
pub use system::{
    SolutionCheck, SystemPlan, SystemProgress, SystemRequest, SystemShare, SystemSolution, SystemSource,
};
