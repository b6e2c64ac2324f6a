//! Collective functions by textbook algorithms: broadcast and reduce along a binomial tree, all-reduce by recursive
//! doubling or around a ring, all-to-all by pairwise exchange.
//!
//! Place in the flow: `conduct` calls these on each end and checks the results.
//!
//! Invariants: any number of ends works, not only powers of two; end 0 is the root of trees; the frames of a long
//! message are pipelined along trees. An exchange sends and receives concurrently, so ends cannot deadlock. Input
//! data are not changed; a result is a list of chunks in byte order, and empty at ends without a result.

use super::end::{MeshEnd, MessageChunk, chunks};
use bramble_link::LinkError;
use std::ops::Range;
use std::sync::Arc;

/// The data that an end contributes.
pub(crate) type SendBuffer = Arc<Vec<u8>>;

/// Parent (`None` at the root) and children in the binomial tree, the child with the largest subtree first.
fn tree(rank: usize, ends: usize) -> (Option<usize>, Vec<usize>) {
    let parent = (rank != 0).then(|| rank & (rank - 1));
    let levels = if rank == 0 { usize::BITS } else { rank.trailing_zeros() };
    let below = (0..levels).map_while(|level| 1usize.checked_shl(level).map(|far| rank + far));
    let mut below: Vec<usize> = below.take_while(|child| *child < ends).collect();
    below.reverse();
    (parent, below)
}

/// Sends end 0's bytes to all ends.
pub(crate) async fn broadcast(
    end: &mut MeshEnd,
    ends: usize,
    mine: &SendBuffer,
) -> Result<Vec<MessageChunk>, LinkError> {
    let (parent, below) = tree(end.rank, ends);
    let mut all = Vec::new();
    for range in chunks(0..mine.len()) {
        let piece = match parent {
            None => MessageChunk::of(mine, range),
            Some(parent) => end.into.piece(parent).await?,
        };
        for child in &below {
            end.out.region(*child, piece.region.clone()).await?;
        }
        all.push(piece);
    }
    Ok(all)
}

/// Sums the numbers of all ends at end 0.
pub(crate) async fn reduce(
    end: &mut MeshEnd,
    ends: usize,
    mine: &SendBuffer,
) -> Result<Vec<MessageChunk>, LinkError> {
    let (parent, below) = tree(end.rank, ends);
    let mut all = Vec::new();
    for range in chunks(0..mine.len()) {
        let mut sum = MessageChunk::of(mine, range);
        // The smallest subtree is summed first.
        for child in below.iter().rev() {
            let more = end.into.piece(*child).await?.plus(sum.bytes(), &end.pool);
            end.pool.put_back([std::mem::replace(&mut sum, more)]);
        }
        match parent {
            None => all.push(sum),
            Some(parent) => {
                end.out.region(parent, sum.region.clone()).await?;
                end.pool.put_back([sum]);
            }
        }
    }
    Ok(all)
}

/// Sums the numbers of all ends at all ends, in log2(ends) steps. If `ends` is not a power of two, the ends above the
/// largest power send their numbers to a partner first, and get the sums last. For messages of one frame.
pub(crate) async fn doubling(
    end: &mut MeshEnd,
    ends: usize,
    mine: &SendBuffer,
) -> Result<Vec<MessageChunk>, LinkError> {
    let rank = end.rank;
    let power = if ends.is_power_of_two() { ends } else { ends.next_power_of_two() / 2 };
    if rank >= power {
        end.out.message(rank - power, mine, 0..mine.len()).await?;
        return Ok(vec![end.into.piece(rank - power).await?]);
    }
    let has_guest = rank + power < ends;
    let mut sum = MessageChunk::of(mine, 0..mine.len());
    if has_guest {
        sum = end.into.piece(rank + power).await?.plus(sum.bytes(), &end.pool);
    }
    let mut far = 1;
    while far < power {
        let MeshEnd { out, into, pool, .. } = &mut *end;
        let sending = out.region(rank ^ far, sum.region.clone());
        let ((), got) = tokio::try_join!(sending, into.piece(rank ^ far))?;
        let more = got.plus(sum.bytes(), pool);
        pool.put_back([std::mem::replace(&mut sum, more)]);
        far *= 2;
    }
    if has_guest {
        end.out.region(rank + power, sum.region.clone()).await?;
    }
    Ok(vec![sum])
}

/// The same around a ring (reduce-scatter, then all-gather): each end sums one part of the numbers, then the sums of
/// all parts go around. This moves the fewest bytes possible, in 2 (ends - 1) steps.
pub(crate) async fn ring(
    end: &mut MeshEnd,
    ends: usize,
    mine: &SendBuffer,
) -> Result<Vec<MessageChunk>, LinkError> {
    let rank = end.rank;
    let (next, before) = ((rank + 1) % ends, (rank + ends - 1) % ends);
    let numbers = mine.len() / 8;
    let part = |at: usize| numbers * at / ends * 8..numbers * (at + 1) / ends * 8;
    let mut held: Vec<MessageChunk> = chunks(part(rank)).map(|range| MessageChunk::of(mine, range)).collect();
    for step in 1..ends {
        let coming = part((rank + ends - step) % ends);
        let got = exchange(end, next, before, &held, coming.clone()).await?;
        let summed = got.into_iter().zip(chunks(coming));
        let more = summed.map(|(piece, range)| piece.plus(&mine[range], &end.pool)).collect();
        end.pool.put_back(std::mem::replace(&mut held, more));
    }
    // This end now has the sums of the part after its own.
    let mut parts: Vec<Vec<MessageChunk>> = (0..ends).map(|_| Vec::new()).collect();
    let mut has = (rank + 1) % ends;
    parts[has] = held;
    for _ in 1..ends {
        let coming = (has + ends - 1) % ends;
        let sent = std::mem::take(&mut parts[has]);
        let got = exchange(end, next, before, &sent, part(coming)).await?;
        parts[has] = sent;
        parts[coming] = got;
        has = coming;
    }
    Ok(parts.into_iter().flatten().collect())
}

/// Sends chunks to one end and concurrently receives a part from another.
async fn exchange(
    end: &mut MeshEnd,
    to: usize,
    from: usize,
    pieces: &[MessageChunk],
    coming: Range<usize>,
) -> Result<Vec<MessageChunk>, LinkError> {
    let MeshEnd { out, into, .. } = end;
    let mut got = Vec::new();
    let sending = async {
        for piece in pieces {
            out.region(to, piece.region.clone()).await?;
        }
        Ok(())
    };
    tokio::try_join!(sending, into.message(from, coming.len(), &mut got))?;
    Ok(got)
}

/// Sends block d of this end's bytes to end d; returns the blocks received, by rank of the sender.
pub(crate) async fn all_to_all(
    end: &mut MeshEnd,
    ends: usize,
    mine: &SendBuffer,
) -> Result<Vec<MessageChunk>, LinkError> {
    let rank = end.rank;
    let bytes = mine.len() / ends;
    let block = |of: usize| of * bytes..(of + 1) * bytes;
    let mut blocks: Vec<Vec<MessageChunk>> = (0..ends).map(|_| Vec::new()).collect();
    blocks[rank] = chunks(block(rank)).map(|range| MessageChunk::of(mine, range)).collect();
    for step in 1..ends {
        let (to, from) = ((rank + step) % ends, (rank + ends - step) % ends);
        let MeshEnd { out, into, .. } = &mut *end;
        let receiving = into.message(from, bytes, &mut blocks[from]);
        tokio::try_join!(out.message(to, mine, block(to)), receiving)?;
    }
    Ok(blocks.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests;
