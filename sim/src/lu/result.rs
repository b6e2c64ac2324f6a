//! The result of a trial of a factorisation: what has happened, counted.
//!
//! Place in the flow: the last value of `run_lu_trial`; tests ask whether rare events did occur.

/// Events that tests want to occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LuRareEvents {
    /// Rings of one machine, and of two.
    pub small_rings: [u64; 2],
    /// Machines without a column.
    pub without_columns: u64,
    /// Frames of a panel that went on before the whole panel had come.
    pub cut_through: u64,
    /// Events after which a panel waited because the next machine had no room.
    pub waited_for_room: u64,
    /// Events after which a due panel was not factored because the machine kept too many.
    pub waited_for_memory: u64,
    /// Panels that came before the machine was told to begin.
    pub came_early: u64,
    /// Tasks that began before all blocks of their machine had come.
    pub before_the_last_block: u64,
    /// Updates of several blocks.
    pub wide_updates: u64,
    /// Panels that the next machine had spent before the sender noticed that they had gone.
    pub overtaken: u64,
    /// Panels with a column without a pivot.
    pub singular: u64,
    /// Frames that a stalled link held up.
    pub stalled: u64,
    /// Tasks that took longer at a slow machine.
    pub slowed: u64,
    /// Machines that died, and machines that the primary stopped before they had finished.
    pub losses: [u64; 2],
    /// Eliminations that started again after a death, runs that ended with right factors after one, and runs that ended because
    /// more machines died than they survive.
    pub after_deaths: [u64; 3],
    /// Wrong elements that the checksums showed, and those of them in the checksum itself.
    pub wrong_found: [u64; 2],
    /// Visits of further right-hand sides at machines.
    pub visits: u64,
}

impl LuRareEvents {
    /// The sum of two counts.
    pub fn plus(mut self, other: &Self) -> Self {
        for (sum, (_, one)) in self.fields_mut().into_iter().zip(other.fields()) {
            *sum += one;
        }
        self
    }

    /// All counts with their names.
    pub fn fields(&self) -> [(&'static str, u64); 21] {
        [
            ("rings of one", self.small_rings[0]),
            ("rings of two", self.small_rings[1]),
            ("machines without columns", self.without_columns),
            ("frames cut through", self.cut_through),
            ("waits for room", self.waited_for_room),
            ("waits for memory", self.waited_for_memory),
            ("early panels", self.came_early),
            ("tasks before the last block", self.before_the_last_block),
            ("wide updates", self.wide_updates),
            ("overtaken", self.overtaken),
            ("singular panels", self.singular),
            ("stalled frames", self.stalled),
            ("slow tasks", self.slowed),
            ("deaths", self.losses[0]),
            ("stopped machines", self.losses[1]),
            ("eliminations again", self.after_deaths[0]),
            ("runs that survived", self.after_deaths[1]),
            ("runs ended by deaths", self.after_deaths[2]),
            ("wrong elements found", self.wrong_found[0]),
            ("wrong checksums", self.wrong_found[1]),
            ("visits of right-hand sides", self.visits),
        ]
    }

    fn fields_mut(&mut self) -> [&mut u64; 21] {
        let [one, two] = &mut self.small_rings;
        let [deaths, stopped] = &mut self.losses;
        let [restarts, survived, ended] = &mut self.after_deaths;
        let [found, checksums] = &mut self.wrong_found;
        [
            one,
            two,
            &mut self.without_columns,
            &mut self.cut_through,
            &mut self.waited_for_room,
            &mut self.waited_for_memory,
            &mut self.came_early,
            &mut self.before_the_last_block,
            &mut self.wide_updates,
            &mut self.overtaken,
            &mut self.singular,
            &mut self.stalled,
            &mut self.slowed,
            deaths,
            stopped,
            restarts,
            survived,
            ended,
            found,
            checksums,
            &mut self.visits,
        ]
    }
}

/// What a trial has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LuTrialResult {
    /// A hash of all events and their times, in their order.
    pub hash: u64,
    /// Events of the run without faults, and of that with faults if there are any.
    pub events: u64,
    /// Virtual seconds of the last run.
    pub seconds: f64,
    /// What has happened.
    pub seen: LuRareEvents,
}
