//! The result of a sequence of operations on placed matrices: what has happened, counted.
//!
//! Place in the flow: the last value of `run_array_sequence`; tests ask whether rare events did occur.

/// Events that tests want to occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayRareEvents {
    /// Connections that have ended.
    pub losses: u64,
    /// Machines that have come back.
    pub came_back: u64,
    /// What was restored.
    pub again: RestoredEvents,
    /// Refusals of machines.
    pub refusals: u64,
    /// Pairs of machines that were linked.
    pub links: u64,
    /// Links between machines that have ended while they were used.
    pub links_ended: u64,
    /// Blocks that a machine has sent to another one.
    pub fetches: u64,
    /// Operands that were spread.
    pub spreads: u64,
    /// Steps with a wrong element.
    pub wrong_steps: u64,
    /// Calls that ended since an element was wrong.
    pub wrong_found: u64,
    /// Parts that were garbled on their way, and those that were corrupted where they lie.
    pub garbled: [u64; 2],
    /// Calls that gave up.
    pub gave_up: u64,
    /// Products whose operands were read in place.
    pub products: u64,
    /// Operands of both sides that are read where they lie.
    pub both_placed: u64,
    /// Calls that succeeded.
    pub succeeded: u64,
    /// Calls that failed.
    pub failed: u64,
}

/// Events of calls that find a part lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoredEvents {
    /// Calls after which all arrays were restored.
    pub restores: u64,
    /// Arrays that got lost parts again from their sources.
    pub put_again: u64,
    /// Arrays of which lost parts were made again.
    pub made_again: u64,
    /// Arrays whose making went on after a loss with what machines had made before.
    pub made_further: u64,
    /// Changed sources that were noticed when a lost part was put again.
    pub stale_found: u64,
}

impl ArrayRareEvents {
    /// The sum of two counts.
    pub fn plus(mut self, other: &Self) -> Self {
        for (sum, one) in self.fields_mut().into_iter().zip(other.fields()) {
            *sum += one.1;
        }
        self
    }

    /// All counts with their names.
    pub fn fields(&self) -> [(&'static str, u64); 21] {
        [
            ("losses", self.losses),
            ("came back", self.came_back),
            ("restores", self.again.restores),
            ("put again", self.again.put_again),
            ("made again", self.again.made_again),
            ("made further", self.again.made_further),
            ("refusals", self.refusals),
            ("links", self.links),
            ("links ended", self.links_ended),
            ("fetches", self.fetches),
            ("spreads", self.spreads),
            ("wrong steps", self.wrong_steps),
            ("wrong found", self.wrong_found),
            ("garbled on their way", self.garbled[0]),
            ("corrupted where they lie", self.garbled[1]),
            ("stale found", self.again.stale_found),
            ("gave up", self.gave_up),
            ("products", self.products),
            ("both placed", self.both_placed),
            ("succeeded", self.succeeded),
            ("failed", self.failed),
        ]
    }

    fn fields_mut(&mut self) -> [&mut u64; 21] {
        let [on_their_way, where_they_lie] = &mut self.garbled;
        [
            &mut self.losses,
            &mut self.came_back,
            &mut self.again.restores,
            &mut self.again.put_again,
            &mut self.again.made_again,
            &mut self.again.made_further,
            &mut self.refusals,
            &mut self.links,
            &mut self.links_ended,
            &mut self.fetches,
            &mut self.spreads,
            &mut self.wrong_steps,
            &mut self.wrong_found,
            on_their_way,
            where_they_lie,
            &mut self.again.stale_found,
            &mut self.gave_up,
            &mut self.products,
            &mut self.both_placed,
            &mut self.succeeded,
            &mut self.failed,
        ]
    }
}

/// What a sequence has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArraySequenceResult {
    /// What has happened.
    pub seen: ArrayRareEvents,
    /// Events in all.
    pub steps: u64,
    /// A number from all events in their order.
    pub hash: u64,
}
