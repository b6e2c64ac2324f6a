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
mod gathering;
mod inspector;
mod levels;
mod partial_sums;
mod product;
mod resume;
mod run;
mod stop;
mod strassen;
mod system;

pub use account::{
    CheckReport, IoUse, JoinedMachine, MachineLoss, MachineReport, MovedWork, PlanReport, ProductProgress,
    Report, TeamChanges, ThreadUse, VerifyReport, WrongTiles,
};
pub use bramble_link::LocalFuture;
pub use bramble_sessions::{
    MachineLink, MachineLinks, PrimaryError, RelayReport, SecretSource, Survey, Surveyed, Unreachable,
    off_loop, survey, wait_for_welcomes,
};
pub use cluster::{
    ArrayId, Cluster, ClusterOptions, MakeReport, MakeRequest, MakeSubject, NodeReport, PartReport,
    PlacedOperand, PutReport, PutRequest, ReduceReport, ReduceRequest, ReduceSubject, TaskProgress, TaskUnit,
    multiply,
};
pub use product::{
    CheckRequest, Finished, ProductObserver, ProductOperand, ProductPlan, Request, SessionRequest, prepared,
};
pub use resume::Resumed;
pub use stop::Stop;
pub use system::{
    FactorsCheck, FactorsRequest, FirstSolution, LuLoss, RefinedRequest, SentColumns, SolutionCheck,
    SolutionRefinement, SystemAtWorkers, SystemFactors, SystemLosses, SystemPlan, SystemPlanning,
    SystemProgress, SystemRequest, SystemShare, SystemSolution, SystemSource,
};
