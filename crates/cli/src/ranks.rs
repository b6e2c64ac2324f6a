//! `--link mpi`: this process is one of several that an `mpirun` started with the same arguments.
//!
//! Place in the flow: before the verb runs. Rank 0 runs the verb; the other ranks serve it (`bramble_cluster::ranks`).

use crate::args::Command;
use bramble_cluster::ranks::{RankRole, Ranks, enter_team};
use bramble_report::exit::Failure;

/// Joins the MPI job if the command line asks for it. On a worker rank, this returns only when the job is over.
pub(crate) fn enter(command: &mut Command) -> Result<(RankRole, Ranks), Failure> {
    let team = match command {
        Command::Multiply(args) => &mut args.team,
        Command::Batch(args) => &mut args.team,
        Command::Plan(args) => &mut args.product.team,
        Command::Sim(args) => &mut args.product.team,
        Command::Nodes(args) => &mut args.team,
        Command::Bench(command) => return bramble_bench::enter_ranks(command),
        _ => return Ok((RankRole::Primary, Ranks::default())),
    };
    enter_team(team)
}
