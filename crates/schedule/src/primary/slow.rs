//! A link that carries so little that others would long have made again what waits at its other end: its machine is cut.
//!
//! Place in the flow: the shell says how many bytes have come and gone (`Event::Flow`); each tick looks at what that was in the
//! seconds before. Stealing has taken what was not begun; here it is about what was sent, or has to come home. Who is cut is
//! lost like any other (`life`).
//!
//! Invariants: only a link that moves is judged, and only where it alone is waited for: not even what waited in it when a window
//! began has gone when that ends; or all has been sent, all work could have been done twice, none gets done, and what comes
//! home does so without a pause. A machine that stands still or computes slowly is not; silence and stealing are for these.
//! The link has to be slower than it was measured, or has been, and twice in a row so slow that there is no doubt. There has
//! to be room for its machine's work elsewhere. One machine is cut at a time: then the others are judged anew. Whoever shares
//! memory has no link to judge.
//!
//! Deliberately absent: links between workers. A machine whose link is bad is so for the primary, too.

use super::life::Life;
use super::peer::Peer;
use super::{Action, Primary};
use bramble_matrix::number::{nearest_f64, to_u64};
use std::time::Duration;

/// A link is looked at over so long.
const WINDOW: Duration = Duration::from_secs(2);
/// A link that is waited for has no pause of so long.
const STRETCH: Duration = Duration::from_millis(450);
/// Fewer bytes may be pings and their answers.
const LEAST_BYTES: f64 = 1024.0;
/// A link that carries more than this part of what it could, or of its part of what the primary's card could, is as it was.
const FALLEN: f64 = 0.25;
/// How often in a row it has to be too slow.
const STRIKES: u8 = 2;
/// What waits has to take so many times as long as making it again, and so much more.
const TIMES: f64 = 2.0;
/// See `TIMES`: seconds.
const MORE_S: f64 = 2.0;

/// What was seen of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Bytes that have come, and that have gone.
    came: u64,
    gone: u64,
    /// Bytes that this system keeps for it.
    held: u64,
    /// The most that it carried in a window, bytes a second, one way.
    best: f64,
    mark: Mark,
    stretch: Stretch,
    strikes: u8,
    is_too_slow: bool,
}

/// How it was when the window began.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: Duration,
    came: u64,
    gone: u64,
    /// Bytes that waited to go.
    waiting: f64,
    /// Where all had been sent that there was to send: work that was done, and since when no more.
    all_but: Option<(f64, Duration)>,
}

/// What has come since when, to see pauses.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    at: Duration,
    came: u64,
    /// Stretches of this window in which nothing came.
    pauses: u32,
}

impl Flow {
    /// Counters of the link, which only grow, and what is under way.
    pub(super) fn moved(&mut self, came: u64, gone: u64, held: u64) {
        self.came = self.came.max(came);
        self.gone = self.gone.max(gone);
        self.held = held;
    }

    /// Whether it was cut for that.
    pub(super) fn is_too_slow(&self) -> bool {
        self.is_too_slow
    }

    /// The next window begins.
    fn renew(&mut self, mark: Mark) {
        let seconds = mark.at.saturating_sub(self.mark.at).as_secs_f64();
        let most = (mark.came - self.mark.came).max(mark.gone - self.mark.gone);
        // What was there before the first window is of another time.
        if self.mark.at > Duration::ZERO && seconds > 0.0 {
            self.best = self.best.max(nearest_f64(most) / seconds);
        }
        (self.mark, self.stretch.pauses) = (mark, 0);
    }

    /// Looks for pauses.
    fn stretch(&mut self, now: Duration) {
        if now.saturating_sub(self.stretch.at) >= STRETCH {
            let pauses = self.stretch.pauses + u32::from(self.came == self.stretch.came);
            self.stretch = Stretch { at: now, came: self.came, pauses };
        }
    }
}

impl Peer {
    fn mark(&self, now: Duration) -> Mark {
        let done = self.walk.pace.done;
        let since =
            self.flow.mark.all_but.filter(|(before, _)| *before == done).map_or(now, |(_, since)| since);
        Mark {
            at: now,
            came: self.flow.came,
            gone: self.flow.gone,
            waiting: self.in_link_bytes() + nearest_f64(self.flow.held),
            all_but: (self.link_is_empty() && self.walk.has_sent_all()).then_some((done, since)),
        }
    }

    /// Work a second, as it was last seen, or else as it was measured before.
    fn rate_at_work(&self) -> f64 {
        match self.walk.pace.rate_at_work() {
            seen if seen > 0.0 => seen,
            _ => self.info.work_per_s,
        }
    }

    /// Seconds that what waits for this link will take at the rate of the window that ends now; `None` where it is not the link
    /// that is waited for, nothing moves, or it carries what it could where so many share the card.
    fn waits_s(&self, now: Mark, owed_bytes: f64, sharing: f64) -> Option<f64> {
        let before = self.flow.mark;
        let seconds = now.at.saturating_sub(before.at).as_secs_f64();
        let (gone, came) = (nearest_f64(now.gone - before.gone), nearest_f64(now.came - before.came));
        let could = self.info.link_bytes_per_s.unwrap_or(0.0).max(self.flow.best);
        let moves = LEAST_BYTES..FALLEN * could / sharing * seconds;
        let of = |bytes: f64, moved: f64| moves.contains(&moved).then(|| bytes * seconds / moved);
        let was_busy = gone < before.waiting;
        let there = if was_busy { of(now.waiting, gone) } else { None };
        // Work is seen to be done by the operands that come back, and those of a block of one step all come at its end.
        let is_done = |since: Duration| {
            let in_flight_s = self.walk.pace.in_flight() / self.rate_at_work();
            now.at.saturating_sub(since).as_secs_f64() > TIMES * in_flight_s
        };
        let only_comes = now.all_but.is_some_and(|(_, since)| is_done(since))
            && now.all_but == before.all_but
            && self.flow.stretch.pauses == 0;
        let home = if only_comes { of(owed_bytes, came) } else { None };
        there.into_iter().chain(home).reduce(f64::max)
    }
}

impl Primary {
    /// Cuts the machine whose link is too slow, if one is.
    pub(super) fn look_at_links(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if !self.recovers || self.stealing.is_off || self.stops || self.over || self.tiles_left == 0 {
            return;
        }
        let sharing = nearest_f64(to_u64(self.peers.iter().filter(|p| p.life.is_heard()).count().max(1)));
        for at in 0..self.peers.len() {
            self.peers[at].flow.stretch(now);
            let peer = &self.peers[at];
            let is_due = now.saturating_sub(peer.flow.mark.at) >= WINDOW;
            if peer.life != Life::Works || peer.info.shares_memory || !is_due {
                continue;
            }
            let (peer, mark) = (&self.peers[at], self.peers[at].mark(now));
            // What is left of a cell of Strassen's method when its operands are used up takes long, too.
            let is_plain = self.plan.strategy.levels == 0;
            let owed_bytes = if is_plain { peer.walk.owed_bytes(&self.plan) } else { 0.0 };
            let waits_s = peer.waits_s(mark, owed_bytes, sharing);
            let again_s = waits_s.filter(|s| *s > MORE_S).and_then(|_| self.again_s(at));
            let too_slow =
                waits_s.zip(again_s).filter(|(waits_s, again_s)| *waits_s > TIMES * again_s + MORE_S);
            let flow = &mut self.peers[at].flow;
            flow.renew(mark);
            flow.strikes = if too_slow.is_some() { flow.strikes + 1 } else { 0 };
            if let Some((waits_s, again_s)) = too_slow.filter(|_| flow.strikes >= STRIKES) {
                let why = format!(
                    "its link has become too slow: what waits there would take {waits_s:.0} s, and others make it again in \
                     {again_s:.1} s"
                );
                flow.is_too_slow = true;
                self.cut(at, &why, actions);
                let anew = |peer: &mut Peer| peer.flow.strikes = 0;
                return self.peers.iter_mut().for_each(anew);
            }
        }
    }

    /// Seconds in which the others would do what they have, and what this one has not given back; `None` where nobody has room.
    pub(super) fn again_s(&self, at: usize) -> Option<f64> {
        let left = self.peers[at].walk.left(&self.plan);
        let others =
            || self.peers.iter().enumerate().filter(|(other, p)| *other != at && p.life.is_trusted());
        let need = left.iter().map(|lot| lot.least_bytes(&self.plan, &self.recipes)).max()?;
        if !others().any(|(_, peer)| peer.info.credit_bytes >= need) {
            return None;
        }
        let work: f64 = left.iter().map(|lot| lot.amount(&self.plan)).sum();
        let (all, rates) = others().fold((work, 0.0), |(all, rates), (_, peer)| {
            (all + peer.walk.pace.left(), rates + peer.rate_at_work())
        });
        (rates > 0.0).then(|| all / rates)
    }
}
