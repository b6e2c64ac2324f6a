//! The primary dies, and another run resumes with the complete tiles.

use super::{Setting, World, operands};
use bramble_plan::{PlanOptions, Problem};
use bramble_schedule::primary::{Primary, PrimaryEvent};
use std::time::Duration;

impl World {
    /// Runs until this many events have happened.
    pub(crate) fn run_for(&mut self, events: u64, choices: &[u32]) {
        self.primary(PrimaryEvent::Start);
        let mut at = 0;
        while self.events < events && !self.finished && self.failed.is_none() {
            let c = choices.get(at).map_or(at, |c| *c as usize);
            let peers = self.ends.len();
            if !self.step(c % peers, (c / peers) % 7, c / peers / 7) && at.is_multiple_of(50) {
                self.pass_time();
            }
            at += 1;
            assert!(at < 40_000_000, "nothing can happen any more, and C is not there");
        }
    }

    /// Runs this many more turns, whatever happens.
    pub(crate) fn run_more(&mut self, turns: usize) {
        let peers = self.ends.len();
        for at in 0..turns {
            self.step(at % peers, (at / peers) % 7, 0);
        }
    }

    /// A resumed run on the workers of that setting, which knows the complete tiles of this one except every
    /// n-th. `None` if these workers cannot do the product.
    pub(crate) fn resumed(
        &self,
        p: &Problem,
        setting: &Setting,
        wish: &PlanOptions,
        nth: usize,
    ) -> Option<Result<Self, String>> {
        let mut next = Self::new(p, setting, wish)?;
        let plan = self.primary.plan().clone();
        let known = self.committed.iter().enumerate().filter(|(at, _)| nth == 0 || at % nth != 0);
        next.committed = known.map(|(_, tile)| *tile).collect();
        for at in 0..next.c.len() {
            let (region, tile) = plan.tile_at(at as u64 / p.n, at as u64 % p.n).unwrap();
            let rect = plan.regions[region].tile_of(tile).unwrap();
            let first = (rect.rows.start, rect.cols.start);
            if next.committed.contains(&first) {
                next.c[at] = self.c[at];
                next.traces.insert(first, self.traces[&first]);
            }
        }
        let is_there = |region: usize, tile: u64| {
            let rect = plan.regions[region].tile_of(tile).unwrap();
            next.committed.contains(&(rect.rows.start, rect.cols.start))
        };
        let operands = operands(p, setting.col_major);
        let primary = match Primary::resumed(plan.clone(), operands, next.infos.clone(), &is_there) {
            Ok(primary) => primary,
            Err(why) => return Some(Err(why)),
        };
        next.primary = if setting.steals { primary } else { primary.without_stealing() };
        next.primary.validate_tiles();
        next.clock = Duration::ZERO;
        Some(Ok(next))
    }
}
