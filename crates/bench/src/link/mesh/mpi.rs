//! The ends of link `mpi`: the processes of an `mpirun`; rank 0 is end 0, as in a product.
//!
//! Invariant: each pair of ranks has a link, and all ranks open their links in the order of ranks, so both ends open
//! the same link.

use super::{Links, MeshEnd};
use crate::link::conduct::serve;
use bramble_cluster::ranks::{Ranks, drive};
use bramble_link::{LinkError, LinkFuture, RankOrder, World};
use bramble_report::exit::Failure;

/// End 0. Has to run inside a `LocalSet`.
pub(super) fn lead(ranks: &Ranks) -> Result<MeshEnd, Failure> {
    let Some(world) = ranks.others() else {
        return Err(Failure::usage(
            "bench link --link mpi: there is only one process; start more: mpirun -n 2 bramble bench link --link mpi",
        ));
    };
    let failed = |e: LinkError| Failure::failed(format!("bench link: mpi: {e}"));
    drive(&world, None)?;
    world.tell(RankOrder::Serve).map_err(failed)?;
    end(&world).map_err(failed)
}

fn end(world: &World) -> Result<MeshEnd, LinkError> {
    let link = |rank| match rank == world.rank() {
        true => Ok(None),
        false => world.link(rank, &format!("end {rank}")).map(Some),
    };
    Ok(MeshEnd::new(world.rank(), (0..world.size()).map(link).collect::<Result<Links, _>>()?))
}

/// The work of all other ranks, until rank 0 ends it.
pub(crate) async fn follow(world: &World) -> Result<(), LinkError> {
    let mut serving: Option<LinkFuture<'_, ()>> = None;
    loop {
        let order = match &mut serving {
            None => world.told().await?,
            Some(end) => tokio::select! {
                // End 0 reports how it ended.
                _ = end => {
                    serving = None;
                    continue;
                }
                order = world.told() => order?,
            },
        };
        match order {
            RankOrder::Serve => serving = Some(Box::pin(serve(end(world)?))),
            RankOrder::Plain(plain) => drop(world.plain(0, plain, false)?),
            RankOrder::Done => return Ok(()),
        }
    }
}
