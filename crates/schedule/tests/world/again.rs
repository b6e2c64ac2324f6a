//! Workers with wrong results, and tiles that are recomputed.

use super::{World, places};
use bramble_base::{Digest128, Rect};
use bramble_schedule::primary::{InspectionEvent, InspectionTask, InspectionVerdict, PrimaryEvent};

impl World {
    /// Tiles of C with a wrong element, by region and number, with their rectangles.
    pub(crate) fn wrong_tiles(&self) -> Vec<((usize, u64), Rect)> {
        let regions = self.primary.plan().regions.iter().enumerate();
        let tiles = regions
            .flat_map(|(at, region)| (0..region.tiles()).map(move |n| ((at, n), region.tile_of(n).unwrap())));
        let is_wrong = |rect: Rect| places(rect, self.p.n).any(|at| self.c[at] != self.expected[at]);
        tiles.filter(|(_, rect)| is_wrong(*rect)).collect()
    }

    /// Carries out the tasks of the inspection until it has ended.
    pub(crate) fn inspect(&mut self, choices: &[u32]) -> InspectionVerdict {
        loop {
            let event = match self.task.take().expect("a task of the inspection") {
                InspectionTask::Check { .. } => {
                    let wrong = (0..self.c.len()).find(|at| self.c[*at] != self.expected[*at]);
                    let fault = wrong.map(|at| (at as u64 / self.p.n, at as u64 % self.p.n));
                    InspectionEvent::Checked { fault, is_one_kernel: true }
                }
                InspectionTask::Locate { .. } => {
                    let tiles: Vec<_> = self.wrong_tiles().into_iter().map(|(tile, _)| tile).collect();
                    InspectionEvent::Located { proven_wrong: tiles.iter().copied().collect(), tiles }
                }
                InspectionTask::Digest(tiles) => {
                    let digests = tiles.into_iter().map(|tile| (tile, self.digest(tile)));
                    InspectionEvent::Digested(digests.collect())
                }
                InspectionTask::Recompute(recomputation) => {
                    self.recomputed.extend(&recomputation.tiles);
                    self.go_on(choices);
                    assert_eq!(self.failed, None);
                    continue;
                }
                InspectionTask::Over(verdict) => return verdict,
            };
            self.primary(PrimaryEvent::Inspection(event));
        }
    }

    fn rect_of(&self, (region, tile): (usize, u64)) -> Rect {
        self.primary.plan().regions[region].tile_of(tile).unwrap()
    }

    fn digest(&self, tile: (usize, u64)) -> Digest128 {
        let rect = self.rect_of(tile);
        let bytes: Vec<u8> = places(rect, self.p.n).flat_map(|at| self.c[at].to_le_bytes()).collect();
        Digest128::of(rect.shape(), bytes.chunks(rect.cols.len() as usize * 8))
    }

    /// The primary has these tiles recomputed: their contents are void, and it is not finished.
    pub(super) fn begin_task(&mut self, task: InspectionTask) {
        if let InspectionTask::Recompute(recomputation) = &task {
            for tile in &recomputation.tiles {
                let rect = self.rect_of(*tile);
                let at = (rect.rows.start, rect.cols.start);
                assert!(self.committed.remove(&at) && self.traces.remove(&at).is_some());
                self.last_step.remove(&at);
                places(rect, self.p.n).for_each(|at| self.c[at] = -66_666);
            }
            (self.finished, self.progress) = (false, 0.0);
        }
        self.task = Some(task);
    }
}
