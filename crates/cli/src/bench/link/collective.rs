//! What several ends do together, by the algorithms of the textbooks: broadcast and reduce along a binomial tree, all-reduce by
//! recursive doubling or round a ring, all-to-all by pairs.
//!
//! Place in the flow: `conduct` has each end do its part; results are checked there.
//!
//! Invariants: any number of ends, not only powers of two; end 0 is the root of trees; along trees the frames of a long message
//! follow each other. An exchange sends and receives at once, so no two ends wait for each other. What is given stays as it
//! was; results are pieces in the order of their bytes, nothing where an end has none.

use super::end::{End, Piece, chunks};
use bramble_link::LinkError;
use std::ops::Range;
use std::sync::Arc;

/// What an end has to give.
pub(crate) type Source = Arc<Vec<u8>>;

/// The end above in the binomial tree, `None` at the root, and those below, the one with the largest part first.
fn tree(rank: usize, ends: usize) -> (Option<usize>, Vec<usize>) {
    let parent = (rank != 0).then(|| rank & (rank - 1));
    let levels = if rank == 0 { usize::BITS } else { rank.trailing_zeros() };
    let below = (0..levels).map_while(|level| 1usize.checked_shl(level).map(|far| rank + far));
    let mut below: Vec<usize> = below.take_while(|child| *child < ends).collect();
    below.reverse();
    (parent, below)
}

/// End 0's bytes to all.
pub(crate) async fn broadcast(end: &mut End, ends: usize, mine: &Source) -> Result<Vec<Piece>, LinkError> {
    let (parent, below) = tree(end.rank, ends);
    let mut all = Vec::new();
    for range in chunks(0..mine.len()) {
        let piece = match parent {
            None => Piece::of(mine, range),
            Some(parent) => end.into.piece(parent).await?,
        };
        for child in &below {
            end.out.region(*child, piece.region.clone()).await?;
        }
        all.push(piece);
    }
    Ok(all)
}

/// The sums of all ends' numbers, at end 0.
pub(crate) async fn reduce(end: &mut End, ends: usize, mine: &Source) -> Result<Vec<Piece>, LinkError> {
    let (parent, below) = tree(end.rank, ends);
    let mut all = Vec::new();
    for range in chunks(0..mine.len()) {
        let mut sum = Piece::of(mine, range);
        // The smallest part is summed first.
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

/// The sums of all ends' numbers, at all, in as many steps as the number of ends has doublings. Where that is no power of two,
/// those above it give their numbers to others first, and get the sums last. For messages of one frame.
pub(crate) async fn doubling(end: &mut End, ends: usize, mine: &Source) -> Result<Vec<Piece>, LinkError> {
    let rank = end.rank;
    let power = if ends.is_power_of_two() { ends } else { ends.next_power_of_two() / 2 };
    if rank >= power {
        end.out.message(rank - power, mine, 0..mine.len()).await?;
        return Ok(vec![end.into.piece(rank - power).await?]);
    }
    let has_guest = rank + power < ends;
    let mut sum = Piece::of(mine, 0..mine.len());
    if has_guest {
        sum = end.into.piece(rank + power).await?.plus(sum.bytes(), &end.pool);
    }
    let mut far = 1;
    while far < power {
        let End { out, into, pool, .. } = &mut *end;
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

/// The same round a ring: each end sums one part of the numbers, and then passes on the sums of all parts. Moves the least that
/// can be moved, in twice as many steps as there are others.
pub(crate) async fn ring(end: &mut End, ends: usize, mine: &Source) -> Result<Vec<Piece>, LinkError> {
    let rank = end.rank;
    let (next, before) = ((rank + 1) % ends, (rank + ends - 1) % ends);
    let numbers = mine.len() / 8;
    let part = |at: usize| numbers * at / ends * 8..numbers * (at + 1) / ends * 8;
    let mut held: Vec<Piece> = chunks(part(rank)).map(|range| Piece::of(mine, range)).collect();
    for step in 1..ends {
        let coming = part((rank + ends - step) % ends);
        let got = exchange(end, next, before, &held, coming.clone()).await?;
        let summed = got.into_iter().zip(chunks(coming));
        let more = summed.map(|(piece, range)| piece.plus(&mine[range], &end.pool)).collect();
        end.pool.put_back(std::mem::replace(&mut held, more));
    }
    // This end has the sums of the part after its own.
    let mut parts: Vec<Vec<Piece>> = (0..ends).map(|_| Vec::new()).collect();
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

/// Sends pieces to one end and takes those of a part from another at the same time.
async fn exchange(
    end: &mut End,
    to: usize,
    from: usize,
    pieces: &[Piece],
    coming: Range<usize>,
) -> Result<Vec<Piece>, LinkError> {
    let End { out, into, .. } = end;
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

/// Block d of each end's bytes to end d; gives the blocks for this end by who gave them.
pub(crate) async fn all_to_all(end: &mut End, ends: usize, mine: &Source) -> Result<Vec<Piece>, LinkError> {
    let rank = end.rank;
    let bytes = mine.len() / ends;
    let block = |of: usize| of * bytes..(of + 1) * bytes;
    let mut blocks: Vec<Vec<Piece>> = (0..ends).map(|_| Vec::new()).collect();
    blocks[rank] = chunks(block(rank)).map(|range| Piece::of(mine, range)).collect();
    for step in 1..ends {
        let (to, from) = ((rank + step) % ends, (rank + ends - step) % ends);
        let End { out, into, .. } = &mut *end;
        let receiving = into.message(from, bytes, &mut blocks[from]);
        tokio::try_join!(out.message(to, mine, block(to)), receiving)?;
    }
    Ok(blocks.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests;
