//! `--link mpi`: this process is one of several that an `mpirun` started with the same arguments.
//!
//! Place in the flow: before the verb runs. Rank 0 runs the verb; the other ranks serve it (`bramble_cluster::ranks`).

use crate::args::{BenchCommand, Command};
use crate::bench::{LinkName, follow};
use bramble_cluster::ranks::{RankRole, Ranks, enter_team};
use bramble_report::exit::{Exit, Failure};

/// Joins the MPI job if the command line asks for it. On a worker rank, this returns only when the job is over.
pub(crate) fn enter(command: &mut Command) -> Result<(RankRole, Ranks), Failure> {
    let team = match command {
        Command::Multiply(args) => &mut args.team,
        Command::Plan(args) => &mut args.team,
        Command::Sim(args) => &mut args.product.team,
        Command::Nodes(args) => &mut args.team,
        Command::Bench(BenchCommand::Link(args)) if args.link.contains(&LinkName::Mpi) => {
            let (role, ranks) = bramble_cluster::ranks::enter(|world| async move {
                follow(&world).await.ok().map(|()| Exit::Done)
            })?;
            args.ranks = ranks.clone();
            return Ok((role, ranks));
        }
        _ => return Ok((RankRole::Primary, Ranks::default())),
    };
    enter_team(team)
}
