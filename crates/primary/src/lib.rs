//! The machine shell of the primary: operands, output and links around the schedule's primary state.
//!
//! Place in the flow: operands and links come in (`cli` opens them), a verified C and a report go out.
//! Sessions are opened and measured, a plan is made, its walk is carried out, C is checked.
//!
//! Invariants: panels leave from where they lie and tiles land where they belong in the output; nothing is
//! copied on the way but elements that have to be made first (converted, transposed). A product ends with a
//! verified C, or with an error that names the machine; every wait has a deadline. Tiles that are complete are kept for a run
//! that goes on where this one ends.
//!
//! Deliberately absent: knowledge of how a worker works (the two shells meet on the wire; threads of this
//! process are a worker like any other, over a link that shares memory), command lines, terminals.

mod account;
mod aside;
mod bodies;
mod error;
mod gathering;
mod inspector;
pub mod keeper;
mod levels;
pub mod log;
mod measure;
mod neighbours;
mod opening;
mod product;
mod resume;
mod run;
mod stop;
mod strassen;
mod survey;

pub use account::{
    IoUse, Joined, Loss, MachineReport, Moved, Progress, RelayReport, Report, ThreadUse, Unreachable,
    VerifyReport, Wrong,
};
pub use error::PrimaryError;
pub use neighbours::Random;
pub use product::{End, Ends, Finished, Request, Watch, gone_on_with, multiply};
pub use resume::Resumed;
pub use stop::Stop;
pub use survey::{Survey, Surveyed, survey, welcomed};
