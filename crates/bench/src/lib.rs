//! `bramble bench`: measurements of this machine that anyone can repeat with one command.
//!
//! Place in the flow: independent of products. Each verb below is a file or a folder.
//!
//! Invariants: candidates that are compared take turns, so that a disturbance affects all of them; results are
//! medians with their spread, never a single run; disturbed measurements are reported.
//!
//! Deliberately absent: other programs. The scripts `bench/*.py` compare Bramble with them.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accumulate;
mod args;
mod error;
mod kernel;
mod link;
mod machine;
mod multiply;
mod plot;
mod product;
mod report;
mod show;
mod spawn;
mod tree;

pub use args::BenchCommand;
pub(crate) use link::{Function, LinkName};
pub(crate) use spawn::Spawned;

use args::BenchChild;
use bramble_cluster::ranks::{RankRole, Ranks, enter};
use bramble_report::exit::{Exit, Failure};

/// Runs the verb.
pub fn run(command: &BenchCommand) -> Result<Exit, Failure> {
    match command {
        BenchCommand::Kernel(args) => kernel::rates(args),
        BenchCommand::Threads(args) => kernel::threads(args),
        BenchCommand::Product(args) => product::run(args),
        BenchCommand::Accumulate(args) => accumulate::run(args),
        BenchCommand::Tree(args) => tree::run(args),
        BenchCommand::Hpl(args) => bramble_solve::hpl::run(args),
        BenchCommand::Report(args) => report::run(args),
        BenchCommand::Link(args) => link::run(args),
        BenchCommand::Spawn(args) => spawn::run(args),
        BenchCommand::Child { purpose: BenchChild::End } => link::run_end(),
        BenchCommand::Child { purpose: BenchChild::Bare } => link::run_bare(),
        BenchCommand::Child { purpose: BenchChild::Nothing } => spawn::run_nothing(),
    }
}

/// Joins the MPI job if the command measures the link `mpi`. On a worker rank, this returns only when the job is over.
pub fn enter_ranks(command: &mut BenchCommand) -> Result<(RankRole, Ranks), Failure> {
    let args = match command {
        BenchCommand::Link(args) if args.link.contains(&LinkName::Mpi) => args,
        _ => return Ok((RankRole::Primary, Ranks::default())),
    };
    let (role, ranks) = enter(|world| async move { link::follow(&world).await.ok().map(|()| Exit::Done) })?;
    args.ranks = ranks.clone();
    Ok((role, ranks))
}
