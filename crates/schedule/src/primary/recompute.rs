//! Recomputing wrong tiles on workers that did not compute them.
//!
//! Place in the flow: the inspection of a complete C finds suspect tiles (`inspection`), and this file their
//! makers. The plan's work for these tiles is reassigned like that of lost workers (`peer_state`); when it is
//! complete, `Finished` comes again.
//!
//! Invariants: a peer that may have made a wrong tile gets no more work in this product. The kernel calls for
//! a tile are the plan's, so a right tile that is recomputed has the same bits, if all workers use the same
//! kernel. Nothing is relayed at this stage: every peer has finished its own share, and reassigned work is
//! sent to each peer directly.
//!
//! Deliberately absent: the inspection, and judging the workers.

use super::peer_state::PeerState;
use super::resume::EARLIER_RUN;
use super::work::BlockWork;
use super::{Primary, PrimaryAction};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use bramble_base::Span;
use core::time::Duration;

/// Owner of the work that recomputes tiles. No peer has this number or a higher one.
pub(super) const RECOMPUTED: usize = EARLIER_RUN - 1;

/// A tile: region, row and column of its cell, number in the cell.
type TileKey = (usize, u64, u64, u64);

impl Primary {
    /// The same primary, which waits for an inspection of C before the product is over.
    pub fn inspected(mut self) -> Self {
        self.inspection.is_on = true;
        self
    }

    /// Whether a worker that is not in `makers` could recompute tiles.
    pub fn has_workers_besides(&self, makers: &[usize]) -> bool {
        let can_follow = |at: usize, maker: usize| self.can_replace(at, maker) || self.can_be_sent_parts(at);
        !self.over
            && self.peers.iter().enumerate().any(|(at, peer)| {
                peer.state.accepts_work()
                    && !makers.contains(&at)
                    && makers.iter().all(|maker| can_follow(at, *maker))
            })
    }

    /// For each tile, by region and number, the peers that computed it or some of its steps; without those of
    /// an earlier run.
    pub fn makers(&self, tiles: &[(usize, u64)]) -> Vec<Vec<usize>> {
        let keys: Vec<TileKey> = tiles.iter().map(|tile| self.key(*tile)).collect();
        let mut found = self.planned(&keys);
        for (_, to, item) in &self.stealing.moves {
            item.works(&self.plan).for_each(|work| record_maker(&mut found, &work, *to));
        }
        let of = |key: &TileKey| {
            let makers = found.get(key).into_iter().flatten().map(|(_, maker)| *maker);
            let makers: BTreeSet<usize> = makers.filter(|maker| *maker < RECOMPUTED).collect();
            makers.into_iter().collect()
        };
        keys.iter().map(of).collect()
    }

    /// All tiles of which these peers computed some steps; for no peers, the tiles of an earlier run.
    pub fn tiles_of(&self, makers: &BTreeSet<usize>) -> Vec<(usize, u64)> {
        let regions = self.plan.regions.iter().enumerate();
        let all: Vec<(usize, u64)> =
            regions.flat_map(|(at, region)| (0..region.tiles()).map(move |tile| (at, tile))).collect();
        let found = self.makers(&all);
        let is_theirs = |of: &[usize]| match makers.is_empty() {
            true => of.is_empty(),
            false => of.iter().any(|maker| makers.contains(maker)),
        };
        all.into_iter().zip(found).filter(|(_, of)| is_theirs(of)).map(|(tile, _)| tile).collect()
    }

    /// The peer that computed the tile of an element of C; `None` if several peers did.
    pub fn owner_of(&self, row: u64, col: u64) -> Option<usize> {
        let makers = self.makers(&[self.plan.tile_at(row, col)?]);
        match makers.first().map(Vec::as_slice) {
            Some([maker]) => Some(*maker),
            _ => None,
        }
    }

    fn key(&self, (region, tile): (usize, u64)) -> TileKey {
        let (tiles, cols) = {
            let region = &self.plan.regions[region];
            (region.q() * region.q(), region.grid.cols())
        };
        let cell = tile / tiles;
        (region, cell / cols, cell % cols, tile % tiles)
    }

    /// The planned owners of the steps of each tile. In a resumed product, no planned member is a peer.
    fn planned(&self, keys: &[TileKey]) -> BTreeMap<TileKey, Vec<(Span, usize)>> {
        let owners = |(region, i, j, _): &TileKey| -> Vec<(Span, usize)> {
            let members = self.plan.members.iter().enumerate();
            let shares = members.flat_map(|(at, member)| member.shares.iter().map(move |share| (at, share)));
            let has = |share: &bramble_plan::Share| {
                let cells = share.cells;
                share.region == *region && cells.rows.contains(*i) && cells.cols.contains(*j)
            };
            let maker = |at| if self.stealing.is_resumed { EARLIER_RUN } else { at };
            shares.filter(|(_, share)| has(share)).map(|(at, share)| (share.steps, maker(at))).collect()
        };
        keys.iter().map(|key| (*key, owners(key))).collect()
    }

    /// Tiles are suspect: reassigns them and excludes `makers` from further work.
    pub(super) fn reopen(
        &mut self,
        tiles: &[(usize, u64)],
        makers: &[usize],
        now: Duration,
        actions: &mut Vec<PrimaryAction>,
    ) {
        assert!(self.tiles_left == 0 && self.inspection.is_on, "C is inspected when all tiles are complete");
        let tiles: BTreeSet<(usize, u64)> = tiles.iter().copied().collect();
        for (at, peer) in self.peers.iter_mut().enumerate() {
            if peer.state.accepts_work() && makers.contains(&at) {
                peer.state = PeerState::Suspect;
            }
            peer.stream.speed.advance_to(now);
        }
        let left = self.unfinished(&|region, tile| !tiles.contains(&(region, tile)));
        self.tiles_left = bramble_base::number::to_u64(tiles.len());
        if let Err(why) = self.reassign(RECOMPUTED, left) {
            self.over = true;
            return actions.push(PrimaryAction::Fail(why));
        }
        self.stealing.next_balance = now;
        self.serve(now, actions);
    }
}

/// Records that a peer did this work, for the tiles in `found`.
fn record_maker(found: &mut BTreeMap<TileKey, Vec<(Span, usize)>>, work: &BlockWork, by: usize) {
    let (region, cells) = (work.block.region, work.block.cells);
    for i in cells.rows.iter() {
        let row = (region, i, cells.cols.start, 0)..(region, i, cells.cols.end, 0);
        for ((_, _, j, inner), makers) in found.range_mut(row) {
            // Tiles that were complete before were not computed by this work.
            if work.committed_tiles >> inner & 1 == 1 {
                continue;
            }
            let steps = work.steps_of(i, *j);
            let rest = core::mem::take(makers).into_iter().flat_map(|(span, maker)| {
                let before = Span::new(span.start, span.end.min(steps.start).max(span.start));
                let after = Span::new(span.start.max(steps.end).min(span.end), span.end);
                [(before, maker), (after, maker)]
            });
            *makers = rest.filter(|(span, _)| !span.is_empty()).collect();
            makers.push((steps, by));
        }
    }
}
