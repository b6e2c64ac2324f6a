//! What follows when a worker of a factorisation is lost: the elimination starts again on the others, or the run ends.
//!
//! Place in the flow: the primary asks after each loss, and before each start. The simulator asks the same.
//!
//! Invariants: a run survives at most as many losses as the user allows. It starts again only on workers of its first start, and
//! never on one that was lost: a machine that comes back serves the next run.
//!
//! Deliberately absent: the new deal of the columns (`plan`), sessions, and any use of factors from before the loss: columns of
//! the lost worker are in all later steps.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

/// A worker that was lost.
#[derive(Clone, Debug, PartialEq)]
pub struct LuLoss {
    /// The worker.
    pub name: String,
    /// Why it counts as lost.
    pub why: String,
    /// Seconds since the first start; 0 before it.
    pub at_s: f64,
}

/// What follows from a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LuAfterLoss {
    /// The elimination starts again on the workers that are left.
    Again,
    /// The run ends.
    Ends,
}

/// The losses of one run, and the workers that are left.
#[derive(Clone, Debug)]
pub struct LuSurvival {
    /// How many losses the run survives.
    survives: usize,
    /// Workers of the first start that were not lost; empty before it.
    left: Vec<String>,
    lost: Vec<LuLoss>,
}

impl LuSurvival {
    /// A run that survives this number of losses, before its first start.
    pub fn new(survives: usize) -> Self {
        Self { survives, left: Vec::new(), lost: Vec::new() }
    }

    /// How many losses the run survives.
    pub fn survives(&self) -> usize {
        self.survives
    }

    /// The workers of the first start. False if too few: after all losses that the run survives, one has to be left.
    #[must_use]
    pub fn begins<'a>(&mut self, workers: impl Iterator<Item = &'a str>) -> bool {
        self.left = workers.map(ToOwned::to_owned).collect();
        self.left.len() > self.survives
    }

    /// A worker is lost.
    pub fn lost(&mut self, name: &str, why: &str, at_s: f64) -> LuAfterLoss {
        let Some(at) = self.left.iter().position(|worker| worker == name) else { return LuAfterLoss::Ends };
        self.left.remove(at);
        self.lost.push(LuLoss { name: name.to_owned(), why: why.to_owned(), at_s });
        if self.lost.len() > self.survives || self.left.is_empty() {
            return LuAfterLoss::Ends;
        }
        LuAfterLoss::Again
    }

    /// The workers on which the elimination starts again.
    pub fn left(&self) -> &[String] {
        &self.left
    }

    /// Whether a worker takes part in the next start.
    pub fn takes_part(&self, name: &str) -> bool {
        self.left.iter().any(|worker| worker == name)
    }

    /// The workers that were lost, in order.
    pub fn losses(&self) -> &[LuLoss] {
        &self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(survives: usize, workers: &[&str]) -> LuSurvival {
        let mut new = LuSurvival::new(survives);
        assert!(new.begins(workers.iter().copied()));
        new
    }

    #[test]
    fn as_many_losses_as_allowed_are_survived_and_one_more_ends_the_run() {
        for survives in 0..4 {
            let mut run = begun(survives, &["w1", "w2", "w3", "w4", "w5"]);
            for (at, name) in ["w3", "w1", "w5", "w2"].into_iter().enumerate() {
                let follows = run.lost(name, "it was silent", 2.5);
                assert_eq!(follows == LuAfterLoss::Again, at < survives, "{name} of {survives}");
                assert!(!run.takes_part(name) && run.takes_part("w4"));
                assert_eq!((run.losses().len(), run.left().len()), (at + 1, 4 - at));
            }
            let named: Vec<&str> = run.losses().iter().map(|loss| loss.name.as_str()).collect();
            assert_eq!(named, ["w3", "w1", "w5", "w2"]);
        }
    }

    #[test]
    fn one_worker_more_than_losses_is_needed() {
        for survives in 0..4 {
            for count in 0..6 {
                let names = ["w1", "w2", "w3", "w4", "w5"];
                let is_enough = LuSurvival::new(survives).begins(names.into_iter().take(count));
                assert_eq!(is_enough, count > survives);
            }
        }
    }

    #[test]
    fn a_stranger_and_a_worker_that_came_back_take_no_part() {
        let mut run = begun(2, &["w1", "w2", "w3"]);
        assert_eq!(run.lost("w2", "it was killed", 1.0), LuAfterLoss::Again);
        assert!(!run.takes_part("w2") && !run.takes_part("w9"));
        assert_eq!(run.left(), ["w1", "w3"]);
        assert_eq!(run.lost("w9", "?", 2.0), LuAfterLoss::Ends);
        assert_eq!(run.losses().len(), 1);
    }
}
