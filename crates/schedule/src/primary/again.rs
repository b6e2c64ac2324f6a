//! Tiles that are wrong are made again, by others than those who made them.
//!
//! Place in the flow: the shell looks at C when all tiles are there. It asks who made those that are wrong (`makers`), and
//! says so (`Event::Wrong`). What the plan has of them is adopted as the work of lost machines is (`life`); when all are there
//! again, `Finished` comes once more. Whether they are others now, and so who was wrong, is for the shell to compare.
//!
//! Invariants: who may have made a wrong tile gets no more work in this product. The kernel calls for a tile are the plan's, so a
//! right tile that is made again has the same bits, where all have the same kernel. Nothing is relayed any more:
//! whoever is served has no part of the plan left, and what is adopted is sent to each by itself.
//!
//! Deliberately absent: looking at C, and judging.

use super::life::Life;
use super::resume::BEFORE;
use super::work::Work;
use super::{Action, Primary};
use bramble_matrix::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Whose the work was of tiles that are made again. No peer has this number, or a higher one.
pub(super) const AGAIN: usize = BEFORE - 1;

/// A tile: region, row and column of its cell, number in the cell.
type Place = (usize, u64, u64, u64);

impl Primary {
    /// The same, where all tiles are looked at before the product is over.
    pub fn inspected(mut self) -> Self {
        self.is_inspected = true;
        self
    }

    /// Whether somebody could make tiles again that these made.
    pub fn has_others_than(&self, makers: &[usize]) -> bool {
        !self.over
            && self.peers.iter().enumerate().any(|(at, peer)| peer.life.is_trusted() && !makers.contains(&at))
    }

    /// Of each of some tiles, by region and number, the peers that computed it, or steps of it; those of a run before are not
    /// among them.
    pub fn makers(&self, tiles: &[(usize, u64)]) -> Vec<Vec<usize>> {
        let places: Vec<Place> = tiles.iter().map(|tile| self.place(*tile)).collect();
        let mut found = self.planned(&places);
        for (_, to, lot) in &self.stealing.moves {
            lot.works(&self.plan).for_each(|work| made(&mut found, &work, *to));
        }
        let of = |place: &Place| {
            let makers = found.get(place).into_iter().flatten().map(|(_, maker)| *maker);
            let makers: BTreeSet<usize> = makers.filter(|maker| *maker < AGAIN).collect();
            makers.into_iter().collect()
        };
        places.iter().map(of).collect()
    }

    /// All tiles that these peers computed, or steps of which they did; for no peers those of a run before.
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

    /// The peer that computed the tile of an element of C, where no other did a part of it.
    pub fn owner_of(&self, row: u64, col: u64) -> Option<usize> {
        let makers = self.makers(&[self.plan.tile_at(row, col)?]);
        match makers.first().map(Vec::as_slice) {
            Some([maker]) => Some(*maker),
            _ => None,
        }
    }

    fn place(&self, (region, tile): (usize, u64)) -> Place {
        let (tiles, cols) = {
            let region = &self.plan.regions[region];
            (region.q() * region.q(), region.grid.cols())
        };
        let cell = tile / tiles;
        (region, cell / cols, cell % cols, tile % tiles)
    }

    /// Who was to compute which steps by the plan. In a product that goes on nobody is who the plan names.
    fn planned(&self, places: &[Place]) -> BTreeMap<Place, Vec<(Span, usize)>> {
        let owners = |(region, i, j, _): &Place| -> Vec<(Span, usize)> {
            let members = self.plan.members.iter().enumerate();
            let shares = members.flat_map(|(at, member)| member.shares.iter().map(move |share| (at, share)));
            let has = |share: &bramble_plan::Share| {
                let cells = share.cells;
                share.region == *region && cells.rows.contains(*i) && cells.cols.contains(*j)
            };
            let maker = |at| if self.stealing.goes_on { BEFORE } else { at };
            shares.filter(|(_, share)| has(share)).map(|(at, share)| (share.steps, maker(at))).collect()
        };
        places.iter().map(|place| (*place, owners(place))).collect()
    }

    /// Tiles are wrong.
    pub(super) fn reopen(
        &mut self,
        tiles: &[(usize, u64)],
        makers: &[usize],
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        assert!(self.tiles_left == 0 && self.is_inspected, "tiles are looked at when all are there");
        let tiles: BTreeSet<(usize, u64)> = tiles.iter().copied().collect();
        for (at, peer) in self.peers.iter_mut().enumerate() {
            if peer.life.is_trusted() && makers.contains(&at) {
                peer.life = Life::Suspect;
            }
            peer.walk.pace.pass(now);
        }
        let left = self.left(&|region, tile| !tiles.contains(&(region, tile)));
        self.tiles_left = bramble_matrix::number::to_u64(tiles.len());
        if let Err(why) = self.adopt(AGAIN, left) {
            self.over = true;
            return actions.push(Action::Fail(why));
        }
        self.stealing.next_look = now;
        self.serve(now, actions);
    }
}

/// A peer did a work: of what is looked for in it, its steps are that peer's.
fn made(found: &mut BTreeMap<Place, Vec<(Span, usize)>>, work: &Work, by: usize) {
    let (region, cells) = (work.block.region, work.block.cells);
    for i in cells.rows.iter() {
        let row = (region, i, cells.cols.start, 0)..(region, i, cells.cols.end, 0);
        for ((_, _, j, inner), makers) in found.range_mut(row) {
            // Of a cell some of whose tiles were there the others were made.
            if work.skip >> inner & 1 == 1 {
                continue;
            }
            let steps = work.steps_of(i, *j);
            let rest = std::mem::take(makers).into_iter().flat_map(|(span, maker)| {
                let before = Span::new(span.start, span.end.min(steps.start).max(span.start));
                let after = Span::new(span.start.max(steps.end).min(span.end), span.end);
                [(before, maker), (after, maker)]
            });
            *makers = rest.filter(|(span, _)| !span.is_empty()).collect();
            makers.push((steps, by));
        }
    }
}
