//! Some results are looked at while the product runs, so that a machine whose results are wrong is not given work to the end.
//!
//! Place in the flow: a tile that one machine made with all its steps is to be looked at (`Action::Look`), before it is
//! complete for anybody else; the shell has a thread check it, and says what came of that (`Event::Looked`). Who is left out
//! is lost like any other (`life`). What it has sent already stays where it is: C as a whole is looked at in the end, and what
//! is wrong then is made again by others (`again`).
//!
//! Invariants: one look at a time. The first tile of each machine is looked at, and every one of a machine that was wrong once;
//! beyond that looks take a small part of the time of one thread, and those who were looked at least come first. Nobody is left
//! out before two of its tiles were wrong and one of somebody else was right (else it is more likely the operands, or this
//! machine), nor where nobody has room for its work. Threads of this process are not looked at: they cannot be left out.
//!
//! Deliberately absent: checking; tiles whose steps several machines made, or that levels of Strassen's method mix.

use super::life::Life;
use super::peer::Owed;
use super::{Action, Primary};
use bramble_matrix::Span;
use std::time::Duration;

/// So many of its tiles have to be wrong.
const WRONG_MIN: u32 = 2;
/// After a look there is none for so many times as long, but for machines that may be left out.
const PAUSE: u32 = 50;
/// Least time between two questions for who made the sums of a tile, which takes a walk over the plan.
const MAKER_EVERY: Duration = Duration::from_millis(50);

/// Which looks there were.
#[derive(Debug, Default)]
pub(super) struct Spots {
    /// Tiles of fewer rows are not looked at; nothing is where this is none.
    rows_min: Option<u64>,
    /// Whose tile is being looked at, and since when.
    under_way: Option<(usize, Duration)>,
    /// No look before that, unless it is needed.
    next: Duration,
    /// No question before that for who made the sums of a tile.
    next_maker: Duration,
}

/// What was seen of a machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    right: u32,
    wrong: u32,
    /// It was left out for that.
    pub(super) is_wrong: bool,
}

impl Primary {
    /// The same, where some tiles of at least so many rows are looked at before C is there.
    pub fn looking(mut self, rows_min: u64) -> Self {
        // Tiles that are mixed afterwards tell nothing.
        self.spots.rows_min = Some(rows_min).filter(|_| self.plan.strategy.levels == 0 && self.recovers);
        self
    }

    /// A tile is complete with what a machine has just sent: it may be looked at, if that machine made all of it.
    pub(super) fn spot(&mut self, at: usize, owed: &Owed, now: Duration, actions: &mut Vec<Action>) {
        let peer = &self.peers[at];
        let may_be = self.spots.rows_min.is_some_and(|rows| owed.rect.rows.len() >= rows)
            && self.spots.under_way.is_none()
            && peer.life.is_trusted()
            && !peer.info.shares_memory
            // The last one is looked at with the rest of C.
            && self.tiles_left > 1;
        if !may_be {
            return;
        }
        let looks = |seen: Seen| seen.right + seen.wrong;
        let is_needed = looks(peer.seen) == 0 || peer.seen.wrong > 0;
        let is_time = now >= self.spots.next;
        let mut others = self.peers.iter().filter(|p| p.life == Life::Works && !p.info.shares_memory);
        let is_next = is_time && others.all(|other| looks(peer.seen) <= looks(other.seen));
        if !is_needed && !is_next {
            return;
        }
        let is_whole = owed.steps == Span::new(0, self.plan.regions[owed.region].steps());
        if !is_whole {
            // Who made sums of a tile is not found out for each tile.
            if now < self.spots.next_maker {
                return;
            }
            self.spots.next_maker = now + MAKER_EVERY;
            if self.makers(&[(owed.region, owed.tile)]).concat() != [at] {
                return;
            }
        }
        self.spots.under_way = Some((at, now));
        actions.push(Action::Look(owed.rect));
    }

    /// What came of a look; `None` where there was none.
    pub(super) fn looked(&mut self, is_wrong: Option<bool>, now: Duration, actions: &mut Vec<Action>) {
        let Some((at, since)) = self.spots.under_way.take() else { return };
        self.spots.next = now + now.saturating_sub(since) * PAUSE;
        let seen = &mut self.peers[at].seen;
        match is_wrong {
            Some(true) => seen.wrong += 1,
            Some(false) => seen.right += 1,
            None => {}
        }
        if self.tiles_left == 0 {
            return;
        }
        for at in 0..self.peers.len() {
            if self.is_wrong(at) {
                self.peers[at].seen.is_wrong = true;
                let why = format!("{} of its results were looked at and wrong", self.peers[at].seen.wrong);
                self.cut(at, &why, actions);
            }
        }
    }

    /// Whether a machine is to be left out for what was seen of it.
    fn is_wrong(&self, at: usize) -> bool {
        let mut others = self.peers.iter().enumerate().filter(|(other, _)| *other != at);
        self.peers[at].life.is_trusted()
            && self.peers[at].seen.wrong >= WRONG_MIN
            && others.any(|(_, other)| other.seen.right > other.seen.wrong)
            && self.again_s(at).is_some()
    }
}
