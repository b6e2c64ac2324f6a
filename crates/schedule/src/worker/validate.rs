//! Cross-checks of a worker's state, for tests and fuzzing.

use super::Worker;
use super::stored::{Operand, Target};
use std::collections::BTreeMap;

impl Worker {
    /// Cross-checks every collection; for tests and the simulator, after each event.
    pub fn validate(&self) {
        let tiles = self.targets.values().filter(|t| t.is_tile()).map(|t| t.header);
        let stored = self.operands.values().map(|o| o.header).chain(tiles);
        let charged: u64 = stored.map(|header| header.charged_bytes()).sum();
        assert_eq!(self.held_bytes, charged, "bytes held are the sum of what is stored");
        assert!(self.held_bytes <= self.grant_bytes, "never more than the grant");
        let mut queued: BTreeMap<u32, usize> = BTreeMap::new();
        for (id, target) in &self.targets {
            self.validate_target(*id, target);
            for operand in target.queue.iter().flat_map(|job| [job.a, job.b]) {
                *queued.entry(operand).or_default() += 1;
            }
        }
        for (id, operand) in &self.operands {
            self.validate_operand(*id, operand, queued.remove(id).unwrap_or(0));
        }
        assert!(queued.is_empty(), "the operands of queued jobs are there: {queued:?}");
    }

    fn validate_target(&self, id: u32, target: &Target) {
        let steps: Vec<u32> = target.queue.iter().map(|j| j.step).collect();
        assert!(steps.windows(2).all(|s| s[0] < s[1]), "queued steps rise");
        assert!(!(target.running && target.leaving));
        assert!(!target.leaving || target.ended && target.is_tile() && target.queue.is_empty());
        let made = self.operands.get(&id);
        assert_eq!(target.is_tile(), made.is_none(), "what jobs write is a tile, or will be an operand");
        assert!(made.is_none_or(|o| o.is_made() && !o.whole()), "what is whole is not written");
    }

    fn validate_operand(&self, id: u32, operand: &Operand, queued: usize) {
        assert!(operand.used <= operand.promised && operand.promised <= operand.header.uses);
        assert!(operand.used < operand.header.uses, "a used-up operand is gone");
        // Jobs that read it are queued or running, one of a target at most.
        let left = usize::from(operand.promised - operand.used);
        assert!(queued <= left && left <= queued + self.targets.values().filter(|t| t.running).count());
        let waiting = if operand.whole() { 0 } else { left };
        assert_eq!(operand.waiting.len(), waiting, "who waits is remembered once, and not for longer");
        assert!(operand.whole() || queued == left, "nobody reads what is not whole");
        assert_eq!(operand.is_made() && !operand.whole(), self.targets.contains_key(&id));
    }
}
