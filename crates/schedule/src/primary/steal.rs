//! Work stealing: unsent work of a slow peer (the victim) moves to a peer that would finish it sooner (the
//! thief).
//!
//! Place in the flow: runs after each event that reports progress, and at ticks. It estimates when each peer
//! will finish at its observed speed (`rate_estimator`), and moves work from the last to the first: whole
//! blocks that no peer has begun; some cells of such a block; or cells of the block that is being sent, from
//! a step on (`PanelStream::trim`), whose sum the thief continues.
//!
//! Invariants: only work that was not begun moves, so each (tile, step) keeps exactly one owner. The kernel
//! calls for a tile do not depend on the worker, so C has the bits of the plan. A stolen piece fits the
//! thief's memory. Decisions are a function of the events and their times. Moves are damped: the search runs
//! about a hundred times per product at most, the victim must finish last beyond doubt, each move must gain a
//! minimum share of the total time after its costs, and a thief with enough work gets nothing.
//!
//! Deliberately absent: taking back work that was sent. The panels in a peer's window (about two steps) are
//! processed there.

use super::peer::Peer;
use super::peer_state::PeerState;
use super::recompute::RECOMPUTED;
use super::relay::ReassignedWork;
use super::steal_candidate::{Steal, StealCandidate, StealRequest};
use super::work::WorkItem;
use super::{Primary, PrimaryAction, send_orders};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bramble_base::number::nearest_f64;
use bramble_base::{Rect, Span};
use bramble_plan::Plan;
use core::time::Duration;

/// Minimum difference between the finish times of victim and thief, as a fraction of the total time.
const GAP_MIN: f64 = 0.03;
/// Assumed relative error of a peer's remaining time. Without it, equal machines would steal from each other
/// and back.
const ESTIMATE_ERROR: f64 = 0.05;
/// Minimum gain of a move, as a fraction of the total time.
const GAIN_MIN: f64 = 0.01;
/// Interval between two searches for moves, as a fraction of the total time.
const SEARCH_EVERY: f64 = 0.01;
/// A thief that has work for this fraction of the total time, plus twice the time that the stolen piece has
/// to wait, gets nothing yet: a later decision knows more and can use smaller pieces.
const ENOUGH_AHEAD: f64 = 0.15;
/// Maximum work items of a peer.
const WORK_ITEMS_MAX: usize = 64;
/// Maximum victims, and thieves for each, that one search considers.
const TRIES_MAX: usize = 8;

/// Work that moved from one peer to another, by stealing or because its owner was lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkMoves {
    /// The peer that had the work.
    pub from: usize,
    /// The peer that did the work.
    pub to: usize,
    /// Number of moves.
    pub times: u64,
    /// Tiles times steps (with Strassen's method, cells times steps).
    pub tile_steps: u64,
    /// Fraction of the whole product, 0 to 1.
    pub part: f64,
}

/// State of work stealing.
#[derive(Default)]
pub(super) struct Stealing {
    pub(super) is_off: bool,
    /// The product was resumed, so no peer is a member of the plan.
    pub(super) is_resumed: bool,
    pub(super) next_balance: Duration,
    /// All moves: (from, to, work item).
    pub(super) moves: Vec<(usize, usize, WorkItem)>,
}

impl Stealing {
    pub(super) fn has_moved(&self) -> bool {
        !self.moves.is_empty()
    }
}

/// Estimate of when a peer finishes.
#[derive(Clone, Copy)]
struct FinishEstimate {
    left: f64,
    rate: f64,
    /// Work that cannot be stolen from it.
    fixed: f64,
}

impl FinishEstimate {
    fn of(peer: &Peer, plan: &Plan) -> Self {
        if peer.state != PeerState::Active {
            return Self { left: 0.0, rate: 0.0, fixed: 0.0 };
        }
        let stream = &peer.stream;
        let (left, in_flight) = (stream.speed.left(), stream.speed.in_flight());
        let fixed = match stream.divisible(plan) {
            _ if !stream.items.is_empty() => in_flight,
            Some(work) => match stream.free_from(none_of(work.cells_left())) {
                Some(from) => in_flight + stream.work_before(plan, from),
                None => left,
            },
            None => left,
        };
        Self { left, rate: stream.speed.rate(), fixed: fixed.min(left) }
    }

    fn seconds(&self) -> f64 {
        if self.rate > 0.0 { self.left / self.rate } else { 0.0 }
    }
}

impl Primary {
    /// Moves work from the peers that finish last to the first to finish, where a move pays.
    pub(super) fn balance(&mut self, now: Duration, actions: &mut Vec<PrimaryAction>) {
        let is_idle = self.stealing.is_off || self.over || self.tiles_left == 0 || self.peers.len() < 2;
        if is_idle || now < self.stealing.next_balance {
            return;
        }
        for peer in &mut self.peers {
            peer.stream.speed.advance_to(now);
        }
        let mut total_s = 0.0;
        let before = self.stealing.moves.len();
        while self.stealing.moves.len() - before < self.peers.len() {
            let estimates: Vec<FinishEstimate> =
                self.peers.iter().map(|p| FinishEstimate::of(p, &self.plan)).collect();
            let last = estimates.iter().map(FinishEstimate::seconds).fold(0.0, f64::max);
            total_s = now.as_secs_f64() + last;
            let Some((from, to, candidate)) = self.best_move(&estimates, total_s) else { break };
            self.take(from, to, candidate);
        }
        let wait = Duration::try_from_secs_f64(total_s * SEARCH_EVERY).unwrap_or(Duration::MAX);
        self.stealing.next_balance = now.saturating_add(wait.max(Duration::from_micros(100)));
        if self.stealing.moves.len() > before {
            // Releases panels that members retained for the victims.
            send_orders(&mut self.directory, &mut self.peers, self.next_peer, actions);
            self.serve(now, actions);
        }
    }

    /// The best move: (victim, thief, candidate).
    fn best_move(
        &self,
        estimates: &[FinishEstimate],
        total_s: f64,
    ) -> Option<(usize, usize, StealCandidate)> {
        let mut order: Vec<usize> = (0..estimates.len()).filter(|p| estimates[*p].rate > 0.0).collect();
        order.sort_by(|a, b| estimates[*b].seconds().total_cmp(&estimates[*a].seconds()).then(a.cmp(b)));
        let level = level(estimates);
        let gap_s = |from: usize, to: usize| {
            estimates[from].seconds() * (1.0 - ESTIMATE_ERROR)
                - estimates[to].seconds() * (1.0 + ESTIMATE_ERROR)
        };
        let is_wide = |from: usize, to: usize| gap_s(from, to) > GAP_MIN * total_s;
        for from in order.iter().take(TRIES_MAX).copied() {
            let thieves = order.iter().rev().take(TRIES_MAX).copied();
            for to in thieves.take_while(|to| is_wide(from, *to)) {
                if let Some(candidate) = self.candidate_for(estimates, (from, to), level, total_s) {
                    return Some((from, to, candidate));
                }
            }
        }
        None
    }

    /// A candidate worth moving from the victim to the thief, if there is one.
    fn candidate_for(
        &self,
        estimates: &[FinishEstimate],
        pair: (usize, usize),
        level: f64,
        total_s: f64,
    ) -> Option<StealCandidate> {
        let (victim, thief) = (&self.peers[pair.0], &self.peers[pair.1]);
        let (from, to) = (estimates[pair.0], estimates[pair.1]);
        if !self.can_replace(pair.1, pair.0) {
            return None;
        }
        if thief.stream.items.len() >= WORK_ITEMS_MAX || thief.stream.speed.is_link_bound() {
            return None;
        }
        let keeps = (level * from.rate).max(from.fixed);
        let wanted = (from.left - keeps).min(level * to.rate - to.left);
        let request = StealRequest {
            plan: &self.plan,
            recipes: &self.recipes,
            credit: thief.info.credit_bytes,
            wanted,
        };
        let seconds = |peer: &Peer, bytes: f64| match peer.stream.speed.link_rate() {
            Some(rate) if !peer.info.shares_memory => bytes / rate,
            _ => 0.0,
        };
        // A thief that has finished computing may still need long to return its tiles.
        let owed_bytes = thief.stream.owed_bytes(&self.plan);
        let is_worth_it = |candidate: &StealCandidate| {
            let ready_s = candidate.ready_s + seconds(victim, candidate.sum_bytes);
            if to.seconds() > 2.0 * ready_s + ENOUGH_AHEAD * total_s {
                return false;
            }
            let work_s = (candidate.work / to.rate).max(seconds(thief, candidate.panel_bytes));
            let goes_home_s = seconds(thief, owed_bytes).max(to.seconds().max(ready_s) + work_s);
            let done_s = goes_home_s + seconds(thief, candidate.home_bytes);
            let rest_s = (from.left - candidate.work) / from.rate;
            from.seconds() - done_s.max(rest_s) > GAIN_MIN * total_s
        };
        request.candidates(&victim.stream).find(is_worth_it)
    }

    /// Carries out a move.
    fn take(&mut self, from: usize, to: usize, candidate: StealCandidate) {
        let (item, loss) = self.take_from(from, candidate.take);
        if let Some(loss) = loss {
            self.directory.reassigned(from, loss);
        }
        let victim = &mut self.peers[from].stream;
        victim.items.retain(|item| !matches!(item, WorkItem::Blocks { numbers, .. } if numbers.is_empty()));
        victim.speed.given -= candidate.work;
        let thief = &mut self.peers[to].stream;
        thief.speed.given += candidate.work;
        thief.items.push_back(item.clone());
        self.stealing.moves.push((from, to, item));
    }

    /// Removes the stolen work from the victim's stream. Returns it, and the part of the victim's own share
    /// that this is. A block that loses cells no longer counts as the member's own, so other members need not
    /// wait for it.
    fn take_from(&mut self, from: usize, take: Steal) -> (WorkItem, Option<ReassignedWork>) {
        let victim = &mut self.peers[from].stream;
        let own = |member: usize, numbers: Span| (member == from).then(|| ReassignedWork::whole(numbers));
        match take {
            Steal::Blocks { item, first } => match &mut victim.items[item] {
                WorkItem::Blocks { member, numbers } => {
                    let taken = Span::new(first, numbers.end);
                    *numbers = Span::new(numbers.start, first);
                    (WorkItem::Blocks { member: *member, numbers: taken }, own(*member, taken))
                }
                WorkItem::Part(_) => unreachable!("a single block has no numbers"),
            },
            Steal::Item(item) => {
                let item = victim.items.remove(item);
                let item = item.unwrap_or_else(|| unreachable!("the item was offered a moment ago"));
                let loss = match &item {
                    WorkItem::Blocks { member, numbers } => own(*member, *numbers),
                    WorkItem::Part(_) => None,
                };
                (item, loss)
            }
            Steal::Part { item, kept, taken } => {
                let last = victim.items[item].last(&self.plan);
                let work = last.unwrap_or_else(|| unreachable!("the block was offered a moment ago"));
                let rest = WorkItem::Part(work.piece(kept, work.block.steps.start));
                let mut loss = None;
                match &mut victim.items[item] {
                    WorkItem::Part(_) => victim.items[item] = rest,
                    WorkItem::Blocks { member, numbers } => {
                        loss = own(*member, Span::new(numbers.end - 1, numbers.end));
                        *numbers = Span::new(numbers.start, numbers.end - 1);
                        victim.items.insert(item + 1, rest);
                    }
                }
                (WorkItem::Part(work.piece(taken, work.block.steps.start)), loss)
            }
            Steal::Cells { from: step, kept, taken } => match victim.divisible(&self.plan) {
                Some(work) => {
                    let piece = work.piece(taken, step);
                    (WorkItem::Part(piece), victim.trim(step, kept))
                }
                None => unreachable!("the cells were offered a moment ago"),
            },
        }
    }

    /// Work of the whole product.
    pub(super) fn all_work(&self) -> f64 {
        let elements: f64 = self.plan.regions.iter().map(|r| nearest_f64(r.elements(r.cells()))).sum();
        (elements * nearest_f64(self.plan.problem.k)).max(1.0)
    }

    /// Number of moves so far.
    pub fn moves(&self) -> usize {
        self.stealing.moves.len()
    }

    /// Moved work, summed for each pair of peers.
    pub fn moved(&self) -> Vec<WorkMoves> {
        let all = self.all_work();
        let mut pairs: BTreeMap<(usize, usize), WorkMoves> = BTreeMap::new();
        for (from, to, item) in self.stealing.moves.iter().filter(|moved| moved.0 < RECOMPUTED) {
            let none = WorkMoves { from: *from, to: *to, times: 0, tile_steps: 0, part: 0.0 };
            let moved = pairs.entry((*from, *to)).or_insert(none);
            moved.times += 1;
            for work in item.works(&self.plan) {
                moved.tile_steps += work.block.count().saturating_mul(work.block.steps.len());
                moved.part += work.amount(&self.plan) / all;
            }
        }
        pairs.into_values().collect()
    }
}

/// The time at which all peers would finish if all stealable work could be divided freely. A peer whose fixed
/// work alone takes longer gives away the rest and is left aside.
fn level(estimates: &[FinishEstimate]) -> f64 {
    let mut open: Vec<&FinishEstimate> = estimates.iter().filter(|s| s.rate > 0.0).collect();
    let mut spare = 0.0;
    loop {
        let (left, rate) = open.iter().fold((spare, 0.0), |sum, s| (sum.0 + s.left, sum.1 + s.rate));
        let level = if rate > 0.0 { left / rate } else { 0.0 };
        let before = open.len();
        open.retain(|s| {
            let is_stuck = s.fixed > level * s.rate * (1.0 + 1e-9);
            spare += if is_stuck { s.left - s.fixed } else { 0.0 };
            !is_stuck
        });
        if open.len() == before || open.is_empty() {
            return level;
        }
    }
}

/// An empty rectangle at the first row of some cells.
fn none_of(cells: Rect) -> Rect {
    Rect::new(Span::new(cells.rows.start, cells.rows.start), cells.cols)
}
