//! Ends that are the processes of an `mpirun`: end 0 is the first of them, as in a product.
//!
//! Invariant: each has a link with each other, opened by both in the order of ranks; so both mean the same one.

use super::{End, Links};
use crate::bench::link::conduct::serve;
use crate::exit::Failure;
use crate::ranks::{Ranks, drive};
use bramble_link::{LinkError, LinkFuture, Order, World};

/// End 0. Has to run inside a `LocalSet`.
pub(super) fn lead(ranks: &Ranks) -> Result<End, Failure> {
    let Some(world) = ranks.others() else {
        return Err(Failure::usage(
            "bench link --link mpi: there is one process; start more: mpirun -n 2 bramble bench link --link mpi",
        ));
    };
    let failed = |e: LinkError| Failure::failed(format!("bench link: mpi: {e}"));
    drive(&world, None)?;
    world.tell(Order::Serve).map_err(failed)?;
    end(&world).map_err(failed)
}

fn end(world: &World) -> Result<End, LinkError> {
    let link = |rank| match rank == world.rank() {
        true => Ok(None),
        false => world.link(rank, &format!("end {rank}")).map(Some),
    };
    Ok(End::new(world.rank(), (0..world.size()).map(link).collect::<Result<Links, _>>()?))
}

/// What all other processes do until the first one says that it is over.
pub(crate) async fn follow(world: &World) -> Result<(), LinkError> {
    let mut serving: Option<LinkFuture<'_, ()>> = None;
    loop {
        let order = match &mut serving {
            None => world.told().await?,
            Some(end) => tokio::select! {
                // How it ended is seen at end 0.
                _ = end => {
                    serving = None;
                    continue;
                }
                order = world.told() => order?,
            },
        };
        match order {
            Order::Serve => serving = Some(Box::pin(serve(end(world)?))),
            Order::Plain(plain) => drop(world.plain(0, plain, false)?),
            Order::Done => return Ok(()),
        }
    }
}
