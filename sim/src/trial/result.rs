//! Results of trials, and counts of the rare events that occurred in them: a swarm without these would test little.

/// Result of a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialResult {
    /// A hash of all events and their times.
    pub hash: u64,
    /// Virtual seconds.
    pub seconds: f64,
    /// Number of events.
    pub events: u64,
    /// Number of lost machines.
    pub losses: usize,
    /// Counts of rare events.
    pub seen: RareEvents,
    /// How often work moved, by steals or losses.
    pub moves: usize,
    /// Why the product failed, in cases where failing is right: no machine was left that could finish it.
    pub failed: Option<String>,
}

/// Counts of rare events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RareEvents {
    /// Frames with lines that workers relayed to each other.
    pub relayed: u64,
    /// Matrices that the relaying worker did not send.
    pub missed: u64,
    /// Tiles that continued a sum in C and were staged.
    pub staged: u64,
    /// Tiles that were recomputed although they were in C.
    pub thrown_away: u64,
    /// Partial sums that were added to C after the loss of the machine that made them.
    pub left_behind: u64,
    /// Tiles that were partly received when their machine was lost.
    pub broken_off: u64,
    /// Why machines were lost.
    pub lost_as: LossReasons,
    /// Links between workers that one of them gave up because of silence.
    pub parted: u64,
    /// Events after which jobs of a worker waited.
    pub waits: JobWaits,
    /// Machines that joined, and those of them that returned work.
    pub joined: u64,
    /// See `joined`.
    pub comers_worked: u64,
    /// Panels of a placed operand that the primary sent to machines that hold no part of it.
    pub parts_sent: u64,
    /// Wrong tiles that were recomputed.
    pub mended: u64,
    /// Deaths of the primary.
    pub deaths: PrimaryDeaths,
    /// How often the primary was suspended, or a clock jumped or stopped.
    pub odd_clocks: u64,
}

/// Counts of lost machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossReasons {
    /// They were silent.
    pub silent: u64,
    /// Their links were too slow.
    pub too_slow: u64,
    /// Their results were wrong, as was noticed before C was complete.
    pub left_out: u64,
}

/// Counts of events after which jobs of a worker waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobWaits {
    /// For its link.
    pub for_link: u64,
    /// Additions, for its threads.
    pub for_threads: u64,
}

/// Counts of deaths of the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrimaryDeaths {
    /// All.
    pub all: u64,
    /// Those with an unsynced journal.
    pub torn: u64,
    /// Tiles that the next life did not have to compute.
    pub tiles_kept: u64,
}
