//! Cross-checks of a worker's state, for tests and fuzzing.

use super::Worker;
use super::stored::{Doing, Stored};
use alloc::vec::Vec;

impl Worker {
    /// Cross-checks all collections, for tests and the simulator after each event.
    pub fn validate(&self) {
        let charged: u64 = self.matrices.values().map(|m| m.header.charged_bytes()).sum();
        assert_eq!(self.held_bytes, charged, "held bytes are the sum of the charges");
        assert!(self.held_bytes <= self.grant_bytes, "never more than the grant");
        let (mut queued, mut running) = (Vec::new(), 0);
        for matrix in self.matrices.values() {
            matrix.validate_target();
            running += usize::from(matrix.doing == Doing::Running);
            queued.extend(matrix.queue.iter().flat_map(|job| [job.a, job.b]));
        }
        // Both lists are sorted by id.
        queued.sort_unstable();
        let mut rest = &queued[..];
        for (id, matrix) in &self.matrices {
            let count = rest.iter().take_while(|operand| *operand == id).count();
            rest = &rest[count..];
            matrix.validate_operand(count, running, self.passing);
        }
        assert!(rest.is_empty(), "the operands of queued jobs are there: {rest:?}");
        self.backpressure.validate();
        self.throttle.validate();
    }
}

impl Stored {
    fn validate_target(&self) {
        let later = self.queue.iter().skip(1);
        assert!(self.queue.iter().zip(later).all(|(job, next)| job.step < next.step), "queued steps rise");
        let leaving = self.doing == Doing::Leaving;
        assert!(!leaving || self.ended && self.is_tile() && self.queue.is_empty());
        let written = self.doing == Doing::Running || !self.queue.is_empty();
        assert!(!written || self.is_target() && !self.is_whole(), "a complete matrix is not written");
    }

    /// Checks an operand that `queued` queued jobs name, while `running` jobs and `passing` relays, any of
    /// which may use it, are under way.
    fn validate_operand(&self, queued: usize, running: usize, passing: usize) {
        assert!(self.used <= self.promised && self.promised <= self.header.uses);
        assert!(self.is_tile() || self.used < self.header.uses, "a used-up operand is gone");
        let left = usize::from(self.promised - self.used);
        let (jobs, orders) = self.waiting();
        let known = queued + orders;
        assert!(known <= left && left <= known + running + passing, "{left} readers, {known} of them known");
        let waiting = if self.is_whole() { 0 } else { left };
        assert_eq!(jobs + orders, waiting, "each waiting user is remembered exactly once");
        assert!(self.is_whole() || known == left, "an incomplete matrix has no running readers");
    }
}
