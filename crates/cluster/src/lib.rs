//! The machines of a product: their names and descriptions, the cluster key, and one link to each of them.
//!
//! Place in the flow: between the command line and the sessions of `bramble_primary`; and, at a worker, between the
//! command line and `bramble_worker`.
//!
//! Invariants: a machine that cannot be used is an error that names it; nothing beyond this machine is connected
//! without the cluster key, unless two options permit it; every process that is started here ends with its owner.
//!
//! Deliberately absent: products, and reports of them.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod args;
pub mod cluster_file;
pub mod connect;
pub mod cut;
pub mod hostfile;
pub mod hosts;
pub mod joining;
pub mod key;
pub mod levels;
pub mod limited;
pub mod local;
pub mod program;
pub mod random;
pub mod ranks;
pub mod signals;
pub mod team;
pub mod text_file;
pub mod toml_keys;
pub mod trust;
pub mod turned_away;
pub mod until;
