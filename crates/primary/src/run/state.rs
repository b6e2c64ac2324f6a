//! Parts of the state that the tasks of a run share.
//!
//! Place in the flow: `Core` holds one of each; `land.rs` fills the landing results, `relay.rs` and `joins.rs` the observed
//! events.

use super::setup::tiles_by_row;
use super::spot_check::SpotCheck;
use crate::partial_sums::PendingResults;
use bramble_matrix::TileLease;
use bramble_plan::Plan;
use bramble_schedule::clock::{PRIMARY_STEP, StepClock};
use bramble_schedule::primary::InspectionTask;
use bramble_sessions::PrimaryError;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Results on their way from the links into C.
#[derive(Default)]
pub(super) struct LandingResults {
    /// Leases of tiles of which only some rows have landed, by peer and id.
    pub(super) partial: BTreeMap<(usize, u32), TileLease>,
    /// Partial sums that wait for earlier steps, and staged tiles.
    pub(super) sums: PendingResults,
}

impl LandingResults {
    /// Drops the unfinished results of a lost peer.
    pub(super) fn lost(&mut self, peer: usize) {
        self.partial.retain(|(from, _), _| *from != peer);
        self.sums.lost(peer);
    }
}

/// Hints to the system to write complete rows of tiles to the disk.
pub(super) struct WriteBack {
    /// Hints under way, each on a thread of its own: a busy disk blocks them.
    pub(super) hints: JoinSet<()>,
    /// Tiles that each row of tiles still lacks; empty where there are no hints.
    tiles_left_in_row: Vec<u64>,
}

impl WriteBack {
    /// For a plan; without hints where C is not one grid of tiles, and in a resumed product, whose journal syncs C anyway.
    pub(super) fn of(plan: &Plan, is_resumed: bool) -> Result<Self, PrimaryError> {
        let tiles_left_in_row = if is_resumed { Vec::new() } else { tiles_by_row(plan)? };
        Ok(Self { hints: JoinSet::new(), tiles_left_in_row })
    }

    /// Counts a committed tile; whether its row of tiles is complete now.
    pub(super) fn completes_row(&mut self, row: u64) -> bool {
        let left = usize::try_from(row).ok().and_then(|row| self.tiles_left_in_row.get_mut(row));
        let Some(left) = left else { return false };
        *left -= 1;
        *left == 0
    }

    /// Gives no more hints: each row of tiles was complete once, and its write-back was requested then.
    pub(super) fn stop(&mut self) {
        self.tiles_left_in_row.clear();
    }
}

/// The times of a run.
pub(super) struct RunTimes {
    pub(super) began: Instant,
    /// Counts the time that this process has run.
    pub(super) clock: StepClock,
    pub(super) first_job: Option<Instant>,
    /// Time that inspections took before tiles were recomputed.
    pub(super) inspecting: Duration,
    /// When the user asked for the end, by the clock.
    pub(super) stopped: Option<Duration>,
    /// Whether goodbyes are queued for all machines.
    pub(super) has_said_goodbye: bool,
}

impl RunTimes {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            clock: StepClock::new(PRIMARY_STEP),
            first_job: None,
            inspecting: Duration::ZERO,
            stopped: None,
            has_said_goodbye: false,
        }
    }

    /// Advances the clock to the present, and returns its time.
    pub(super) fn advance(&mut self) -> Duration {
        self.clock.advance_to(self.began.elapsed())
    }
}

/// Why a run failed.
pub(super) struct RunFailure {
    pub(super) why: String,
    /// Whether the file of an operand was changed.
    pub(super) is_changed: bool,
}

impl From<RunFailure> for PrimaryError {
    fn from(failure: RunFailure) -> Self {
        if failure.is_changed { Self::Changed(failure.why) } else { Self::Failed(failure.why) }
    }
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// Checks of results that the state machine has asked for and that have not begun.
#[derive(Default)]
pub(super) struct RequestedChecks {
    /// The next task of the inspection.
    pub(super) inspection: Option<InspectionTask>,
    /// A tile that waits for its spot check.
    pub(super) spot_check: Option<SpotCheck>,
}

/// Events of a run that only the report tells.
#[derive(Default)]
pub(super) struct ObservedEvents {
    /// Links between workers that broke: the two peers, and why.
    pub(super) parted: Vec<(usize, usize, String)>,
    /// Machines that joined, and when.
    pub(super) joined: Vec<(usize, Duration)>,
}
