//! Partial sums over k: which steps are in each tile of C, and which sums wait for earlier ones.
//!
//! Place in the flow: asked when a tile has come back whole, and before a block is begun that goes on from a sum.
//!
//! Invariants: every (tile, step) is added once, in the order of the steps: a sum of steps a..b is added only when
//! exactly the steps 0..a are in. Tiles that come back with all their steps never appear here, so what is remembered
//! are the tiles under way.

use bramble_matrix::Span;
use std::collections::BTreeMap;

/// A tile: region, and number in it.
pub(super) type Tile = (usize, u64);

/// A sum that has come back: who sent it, and under which id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Came {
    pub(super) peer: usize,
    pub(super) id: u32,
}

/// The state of all tiles that are summed in parts.
#[derive(Default)]
pub(super) struct PartialSums {
    /// Steps 0..n are in C.
    done: BTreeMap<Tile, u64>,
    /// Sums that came before those of the steps before them, by tile and first step.
    waiting: BTreeMap<(Tile, u64), (Came, u64)>,
}

impl PartialSums {
    /// Steps of a tile that are in C.
    pub(super) fn done(&self, tile: Tile) -> u64 {
        self.done.get(&tile).copied().unwrap_or(0)
    }

    /// Whether a tile has some of its steps and not all.
    pub(super) fn is_begun(&self, tile: Tile) -> bool {
        self.done.contains_key(&tile)
    }

    /// A sum has come: what is to be added now, in this order. `all` is the number of steps.
    pub(super) fn came(&mut self, tile: Tile, steps: Span, came: Came, all: u64) -> Vec<Came> {
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

    /// The steps of all tiles that are here, in C or waiting.
    pub(super) fn steps(&self) -> impl Iterator<Item = (Tile, Span)> + '_ {
        let done = self.done.iter().map(|(tile, done)| (*tile, Span::new(0, *done)));
        let wait = |((tile, start), (_, end)): (&(Tile, u64), &(Came, u64))| (*tile, Span::new(*start, *end));
        done.chain(self.waiting.iter().map(wait))
    }

    /// Sums that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Tiles that have some steps, but not all.
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
                let came = Came { peer: 0, id: part as u32 };
                let steps = Span::new(part * 3, part * 3 + 3);
                added.extend(sums.came((0, 7), steps, came, 36).into_iter().map(|c| c.id));
            }
            prop_assert_eq!(added, (0..12).collect::<Vec<u32>>());
            prop_assert_eq!((sums.waiting(), sums.begun()), (0, 0));
        }
    }

    #[test]
    #[should_panic(expected = "come twice")]
    fn the_same_steps_twice_are_a_bug() {
        let mut sums = PartialSums::default();
        let came = Came { peer: 0, id: 1 };
        sums.came((0, 0), Span::new(0, 2), came, 4);
        sums.came((0, 0), Span::new(0, 2), came, 4);
    }
}
