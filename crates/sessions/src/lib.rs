//! The primary's sessions with machines: opened, measured, introduced to each other, kept alive between products.
//!
//! Place in the flow: `cluster` connects to machines; `primary` runs products and places matrices over these sessions.
//!
//! Invariants: every wait has a deadline that names the machine. A connection has one session at a time, and a machine hears from
//! the primary every `PING_AFTER` for as long as it is connected.
//!
//! Deliberately absent: plans, products, and the elements of matrices.

mod error;
mod idle;
mod links;
mod measure;
mod neighbours;
mod opening;
mod survey;
mod together;

pub use error::{PrimaryError, off_loop};
pub use idle::IdleConnections;
pub use links::{CLOSING, GOODBYE, MachineLink, MachineLinks, Numbers, RelayReport, Unreachable};
pub use measure::{measure, ping};
pub use neighbours::{ConnectedPeers, IntroductionEnd, Pairing, SecretSource, introduce};
pub use opening::{
    Connection, KnownConnection, LostConnection, Opening, Session, dismiss, end_session, even_speeds, idle,
    no_goodbye, one_kernel, open, same_kernel,
};
pub use survey::{Survey, Surveyed, survey, wait_for_welcomes};
pub use together::{EndedJob, MachineJob, MachineWork, Together, UsedSession, at_once};
