//! Spot checks: some tiles are verified while the product runs, so that a worker with wrong results does not
//! get work until the end.
//!
//! Place in the flow: when a worker has computed all steps of a tile, the primary may ask for a check
//! (`PrimaryAction::SpotCheck`) before the tile counts as complete. A thread of the shell checks it and
//! reports the result (`PrimaryEvent::SpotChecked`). An excluded worker is handled like a lost one
//! (`peer_state`). Its earlier results stay in C: the final inspection checks all of C, and other workers
//! recompute the tiles that it finds wrong (`recompute`).
//!
//! Invariants: one check at a time. The first tile of each worker is checked, and every tile of a worker with
//! a wrong one; beyond that, checks take a small part of one thread's time, and workers with the fewest
//! checks come first. A worker is excluded only after two wrong tiles, if another worker had more right tiles
//! than wrong ones (otherwise the operands or the primary's machine are the likelier cause), and if another
//! worker has memory for its work. Threads of this process are not checked: they cannot be excluded.
//!
//! Deliberately absent: the check itself; tiles whose steps several workers computed, or that Strassen's
//! method mixes.

use super::peer::Owed;
use super::peer_state::PeerState;
use super::{Primary, PrimaryAction};
use alloc::format;
use alloc::vec::Vec;
use bramble_base::Span;
use core::time::Duration;

/// Number of wrong tiles before a worker is excluded.
const WRONG_MIN: u32 = 2;
/// After a check, the next one waits this many times as long as the check took, except for workers that may
/// be excluded.
const PAUSE: u32 = 50;
/// Minimum time between two searches for the makers of a tile's sums, each of which takes a pass over the
/// plan.
const MAKER_EVERY: Duration = Duration::from_millis(50);

/// State of the spot checks.
#[derive(Debug, Default)]
pub(super) struct SpotChecks {
    /// Minimum rows of a checked tile; `None` turns spot checks off.
    rows_min: Option<u64>,
    /// The peer whose tile is being checked, and since when.
    under_way: Option<(usize, Duration)>,
    /// No check before this time, except necessary ones.
    next: Duration,
    /// No search for makers before this time.
    next_maker: Duration,
}

/// Results of the spot checks of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpotCheckCounts {
    right: u32,
    wrong: u32,
    /// Whether it was excluded because of them.
    pub(super) is_wrong: bool,
}

impl Primary {
    /// The same primary with spot checks of tiles that have at least `rows_min` rows.
    pub fn with_spot_checks(mut self, rows_min: u64) -> Self {
        // With Strassen's method, mixed tiles do not show which worker was wrong.
        self.spot_checks.rows_min =
            Some(rows_min).filter(|_| self.plan.strategy.levels == 0 && self.recovers);
        self
    }

    /// A tile is complete with the sum that peer `at` just sent. Asks for a check if that peer computed all
    /// of it and a check is due.
    pub(super) fn spot_check(
        &mut self,
        at: usize,
        owed: &Owed,
        now: Duration,
        actions: &mut Vec<PrimaryAction>,
    ) {
        let peer = &self.peers[at];
        let may_be = self.spot_checks.rows_min.is_some_and(|rows| owed.rect.rows.len() >= rows)
            && self.spot_checks.under_way.is_none()
            && peer.state.accepts_work()
            && !peer.info.shares_memory
            // The last tile is checked with the rest of C.
            && self.tiles_left > 1;
        if !may_be {
            return;
        }
        let looks = |seen: SpotCheckCounts| seen.right + seen.wrong;
        let is_needed = looks(peer.spot_checks) == 0 || peer.spot_checks.wrong > 0;
        let is_time = now >= self.spot_checks.next;
        let mut others = self.peers.iter().filter(|p| p.state == PeerState::Active && !p.info.shares_memory);
        let is_next = is_time && others.all(|other| looks(peer.spot_checks) <= looks(other.spot_checks));
        if !is_needed && !is_next {
            return;
        }
        let is_whole = owed.steps == Span::new(0, self.plan.regions[owed.region].steps());
        if !is_whole {
            // Finding the makers of a sum is too slow to do for each tile.
            if now < self.spot_checks.next_maker {
                return;
            }
            self.spot_checks.next_maker = now + MAKER_EVERY;
            if self.makers(&[(owed.region, owed.tile)]).concat() != [at] {
                return;
            }
        }
        self.spot_checks.under_way = Some((at, now));
        actions.push(PrimaryAction::SpotCheck(owed.rect));
    }

    /// Takes the result of a check; `None` if the check gave no answer.
    pub(super) fn spot_checked(
        &mut self,
        is_wrong: Option<bool>,
        now: Duration,
        actions: &mut Vec<PrimaryAction>,
    ) {
        let Some((at, since)) = self.spot_checks.under_way.take() else { return };
        self.spot_checks.next = now + now.saturating_sub(since) * PAUSE;
        let counts = &mut self.peers[at].spot_checks;
        match is_wrong {
            Some(true) => counts.wrong += 1,
            Some(false) => counts.right += 1,
            None => {}
        }
        if self.tiles_left == 0 {
            return;
        }
        for at in 0..self.peers.len() {
            if self.must_be_excluded(at) {
                self.peers[at].spot_checks.is_wrong = true;
                let why = format!(
                    "{} of its results were spot-checked and wrong",
                    self.peers[at].spot_checks.wrong
                );
                self.disconnect(at, &why, actions);
            }
        }
    }

    /// Whether a worker is to be excluded because of its results.
    fn must_be_excluded(&self, at: usize) -> bool {
        let mut others = self.peers.iter().enumerate().filter(|(other, _)| *other != at);
        self.peers[at].state.accepts_work()
            && self.peers[at].spot_checks.wrong >= WRONG_MIN
            && others.any(|(_, other)| other.spot_checks.right > other.spot_checks.wrong)
            && self.recompute_s(at).is_some()
    }
}
