//! Partial sums over k: which steps each tile of C contains, and which partial sums wait for earlier steps.
//!
//! Place in the flow: called when a tile has come back completely, and before a block that continues a sum is
//! begun.
//!
//! Invariants: every (tile, step) is added once, in the order of the steps: a sum of steps a..b is added only
//! when C contains exactly the steps 0..a. Tiles that come back with all their steps never appear here, so
//! the size is bounded by the tiles under way.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bramble_base::Span;

/// A tile: region, and number in it.
pub(super) type TileIndex = (usize, u64);

/// A partial sum that came back: the sending peer, and the tile's id there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedSum {
    pub(super) peer: usize,
    pub(super) id: u32,
}

/// State of all tiles that are summed in parts.
#[derive(Default)]
pub(super) struct PartialSums {
    /// By tile, n where C contains steps 0..n.
    done: BTreeMap<TileIndex, u64>,
    /// By tile and first step: sums that wait for the steps before, with their last step.
    waiting: BTreeMap<(TileIndex, u64), (ReceivedSum, u64)>,
}

impl PartialSums {
    /// Number of steps of a tile that C contains.
    pub(super) fn done(&self, tile: TileIndex) -> u64 {
        self.done.get(&tile).copied().unwrap_or(0)
    }

    /// Whether C contains some steps of a tile, but not all.
    pub(super) fn is_begun(&self, tile: TileIndex) -> bool {
        self.done.contains_key(&tile)
    }

    /// Takes a partial sum, and returns the sums to add now, in this order. `all` is the number of steps.
    pub(super) fn receive(
        &mut self,
        tile: TileIndex,
        steps: Span,
        came: ReceivedSum,
        all: u64,
    ) -> Vec<ReceivedSum> {
        let mut now = Vec::new();
        let done = self.done(tile);
        assert!(steps.start >= done, "steps {steps} of tile {tile:?} come twice: 0..{done} are in");
        if steps.start > done {
            let before = self.waiting.insert((tile, steps.start), (came, steps.end));
            assert!(before.is_none(), "steps {steps} of tile {tile:?} come twice");
            return now;
        }
        now.push(came);
        let mut done = steps.end;
        while let Some((next, end)) = self.waiting.remove(&(tile, done)) {
            now.push(next);
            done = end;
        }
        if done == all {
            self.done.remove(&tile);
        } else {
            self.done.insert(tile, done);
        }
        now
    }

    /// The steps that C or a waiting sum contains, for all tiles under way.
    pub(super) fn steps(&self) -> impl Iterator<Item = (TileIndex, Span)> + '_ {
        let done = self.done.iter().map(|(tile, done)| (*tile, Span::new(0, *done)));
        let wait = |((tile, start), (_, end)): (&(TileIndex, u64), &(ReceivedSum, u64))| {
            (*tile, Span::new(*start, *end))
        };
        done.chain(self.waiting.iter().map(wait))
    }

    /// The tiles of waiting sums, and the peers that returned these.
    pub(super) fn waiting_at(&self) -> impl Iterator<Item = (TileIndex, usize)> + '_ {
        self.waiting.iter().map(|((tile, _), (came, _))| (*tile, came.peer))
    }

    /// Number of waiting sums.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of tiles of which C contains some steps, but not all.
    pub(super) fn begun(&self) -> usize {
        self.done.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_are_added_once_and_in_order(order in Just((0..12u64).collect::<Vec<_>>()).prop_shuffle()) {
            let mut sums = PartialSums::default();
            let mut added = Vec::new();
            for part in order {
                let came = ReceivedSum { peer: 0, id: part as u32 };
                let steps = Span::new(part * 3, part * 3 + 3);
                added.extend(sums.receive((0, 7), steps, came, 36).into_iter().map(|c| c.id));
            }
            prop_assert_eq!(added, (0..12).collect::<Vec<u32>>());
            prop_assert_eq!((sums.waiting(), sums.begun()), (0, 0));
        }
    }

    #[test]
    #[should_panic(expected = "come twice")]
    fn the_same_steps_twice_are_a_bug() {
        let mut sums = PartialSums::default();
        let came = ReceivedSum { peer: 0, id: 1 };
        sums.receive((0, 0), Span::new(0, 2), came, 4);
        sums.receive((0, 0), Span::new(0, 2), came, 4);
    }
}
