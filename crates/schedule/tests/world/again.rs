//! Workers with wrong results, and tiles that are recomputed.

use super::{World, places};
use bramble_base::Rect;
use bramble_schedule::primary::PrimaryEvent;

impl World {
    /// Tiles of C with a wrong element, by region and number, with their rectangles.
    pub(crate) fn wrong_tiles(&self) -> Vec<((usize, u64), Rect)> {
        let regions = self.primary.plan().regions.iter().enumerate();
        let tiles = regions
            .flat_map(|(at, region)| (0..region.tiles()).map(move |n| ((at, n), region.tile_of(n).unwrap())));
        let is_wrong = |rect: Rect| places(rect, self.p.n).any(|at| self.c[at] != self.expected[at]);
        tiles.filter(|(_, rect)| is_wrong(*rect)).collect()
    }

    /// Has these tiles recomputed by other workers; their contents are dropped.
    pub(crate) fn reopen(&mut self, tiles: &[((usize, u64), Rect)], makers: Vec<usize>, choices: &[u32]) {
        for (_, rect) in tiles {
            let at = (rect.rows.start, rect.cols.start);
            assert!(self.committed.remove(&at) && self.traces.remove(&at).is_some());
            self.last_step.remove(&at);
            places(*rect, self.p.n).for_each(|at| self.c[at] = -66_666);
        }
        (self.finished, self.progress) = (false, 0.0);
        let tiles = tiles.iter().map(|(tile, _)| *tile).collect();
        self.primary(PrimaryEvent::Wrong { tiles, makers });
        self.go_on(choices);
    }
}
