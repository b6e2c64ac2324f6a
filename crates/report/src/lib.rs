//! What the program tells people and scripts: exit codes, failures, texts, tables, pictures and JSON.
//!
//! Place in the flow: last. A verb hands a result to this crate, which turns it into text or JSON.
//!
//! Invariants: results go to stdout, everything else to stderr; exit codes and JSON are contracts with scripts.
//!
//! Deliberately absent: options of the command line, connections to machines, and anything that computes or plans.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod account;
pub mod chart;
mod console;
pub mod digest;
pub mod error_object;
pub mod exit;
pub mod losses;
pub mod machine;
mod meter;
pub mod out_file;
pub mod placed;
pub mod plan;
pub mod plot_file;
pub mod product;
pub mod progress;
pub mod quantity;
pub mod sim;
pub mod table;
pub mod times;
pub mod trace;

pub use console::{out, say, tell};
