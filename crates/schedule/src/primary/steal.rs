//! Stealing: what a slow peer has not been sent goes to one that would be done before it.
//!
//! Place in the flow: asked after each event that says that something was done, and at ticks. It compares when each
//! peer will be done at the speed that was seen of it (`pace`), and moves work from who will be last to who will be
//! first: whole blocks that nobody has begun; or some of their cells; or cells of the block that is being sent, from a
//! step on (`Walk::trim`), whose sum the other goes on from.
//!
//! Invariants: what moves was not begun, so each (tile, step) still has one owner; the kernel calls for a tile are the
//! same, in the same order, whoever makes them, so C's bits are those of the plan. A piece fits the memory of who takes it.
//! Decisions are a function of the events and their times. Moves are damped: they are looked for at most a hundred times
//! or so in a product, who will be last has to be so beyond doubt, each has to be worth a part of the whole time with what
//! it costs, and who has enough to do for long is given nothing.
//!
//! Deliberately absent: taking back what was sent. What is in a peer's window (about two steps) it does itself.

use super::again::AGAIN;
use super::life::Life;
use super::offer::{Buyer, Offer, Take};
use super::peer::Peer;
use super::relay::Loss;
use super::work::Lot;
use super::{Action, Primary, send_orders};
use bramble_matrix::number::nearest_f64;
use bramble_matrix::{Rect, Span};
use bramble_plan::Plan;
use std::collections::BTreeMap;
use std::time::Duration;

/// Who will be done so much of the whole time before another may take from it.
const GAP: f64 = 0.03;
/// By how much of it a peer's remaining time may be wrong: equal machines do not take from each other what they then have to
/// give back.
const DOUBT: f64 = 0.05;
/// What a move has to gain, of the whole time.
const GAIN: f64 = 0.01;
/// How often moves are looked for, of the whole time.
const LOOK: f64 = 0.01;
/// Who still has work for so much of the whole time (and as long again as it would have to wait) is given nothing yet:
/// later more is known, and smaller pieces can be cut.
const AHEAD: f64 = 0.15;
/// Lots that a peer may have, and pairs of peers that are tried for one move.
const LOTS_MAX: usize = 64;
/// See `LOTS_MAX`.
const TRIES_MAX: usize = 8;

/// Work that was moved from one peer to another, because that was slow or is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// Whose it was.
    pub from: usize,
    /// Who did it.
    pub to: usize,
    /// How often something moved.
    pub times: u64,
    /// Tiles times steps (with Strassen's method cells times steps).
    pub tile_steps: u64,
    /// Part of all work, 0 to 1.
    pub part: f64,
}

/// What stealing remembers.
#[derive(Default)]
pub(super) struct Stealing {
    pub(super) is_off: bool,
    /// The members of the plan are not among the peers.
    pub(super) goes_on: bool,
    pub(super) next_look: Duration,
    /// Everything that moved: from whom, to whom, what.
    pub(super) moves: Vec<(usize, usize, Lot)>,
}

impl Stealing {
    pub(super) fn has_moved(&self) -> bool {
        !self.moves.is_empty()
    }
}

/// When a peer will be done.
#[derive(Clone, Copy)]
struct Stand {
    left: f64,
    rate: f64,
    /// Work that nobody can take from it.
    fixed: f64,
}

impl Stand {
    fn of(peer: &Peer, plan: &Plan) -> Self {
        if peer.life != Life::Works {
            return Self { left: 0.0, rate: 0.0, fixed: 0.0 };
        }
        let walk = &peer.walk;
        let (left, in_flight) = (walk.pace.left(), walk.pace.in_flight());
        let fixed = match walk.divisible(plan) {
            _ if !walk.lots.is_empty() => in_flight,
            Some(work) => match walk.free_from(none_of(work.cells_left())) {
                Some(from) => in_flight + walk.work_before(plan, from),
                None => left,
            },
            None => left,
        };
        Self { left, rate: walk.pace.rate(), fixed: fixed.min(left) }
    }

    fn seconds(&self) -> f64 {
        if self.rate > 0.0 { self.left / self.rate } else { 0.0 }
    }
}

impl Primary {
    /// Moves work from who will be last to who will be first, where that is worth it.
    pub(super) fn balance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let is_idle = self.stealing.is_off || self.over || self.tiles_left == 0 || self.peers.len() < 2;
        if is_idle || now < self.stealing.next_look {
            return;
        }
        for peer in &mut self.peers {
            peer.walk.pace.pass(now);
        }
        let mut total_s = 0.0;
        let before = self.stealing.moves.len();
        while self.stealing.moves.len() - before < self.peers.len() {
            let stands: Vec<Stand> = self.peers.iter().map(|p| Stand::of(p, &self.plan)).collect();
            let last = stands.iter().map(Stand::seconds).fold(0.0, f64::max);
            total_s = now.as_secs_f64() + last;
            let Some((from, to, offer)) = self.best_move(&stands, total_s) else { break };
            self.take(from, to, offer);
        }
        let wait = Duration::try_from_secs_f64(total_s * LOOK).unwrap_or(Duration::MAX);
        self.stealing.next_look = now.saturating_add(wait.max(Duration::from_micros(100)));
        if self.stealing.moves.len() > before {
            // What members kept for those that lost work.
            send_orders(&mut self.board, &mut self.peers, self.next_peer, actions);
            self.serve(now, actions);
        }
    }

    /// (from whom, to whom, what).
    fn best_move(&self, stands: &[Stand], total_s: f64) -> Option<(usize, usize, Offer)> {
        let mut order: Vec<usize> = (0..stands.len()).filter(|p| stands[*p].rate > 0.0).collect();
        order.sort_by(|a, b| stands[*b].seconds().total_cmp(&stands[*a].seconds()).then(a.cmp(b)));
        let level = level(stands);
        let surely = |from: usize, to: usize| {
            stands[from].seconds() * (1.0 - DOUBT) - stands[to].seconds() * (1.0 + DOUBT)
        };
        let gap = |from: usize, to: usize| surely(from, to) > GAP * total_s;
        for from in order.iter().take(TRIES_MAX).copied() {
            let thieves = order.iter().rev().take(TRIES_MAX).copied();
            for to in thieves.take_while(|to| gap(from, *to)) {
                if let Some(offer) = self.offer_for(stands, (from, to), level, total_s) {
                    return Some((from, to, offer));
                }
            }
        }
        None
    }

    /// What is worth moving between two peers, if anything is.
    fn offer_for(&self, stands: &[Stand], pair: (usize, usize), level: f64, total_s: f64) -> Option<Offer> {
        let (victim, thief) = (&self.peers[pair.0], &self.peers[pair.1]);
        let (from, to) = (stands[pair.0], stands[pair.1]);
        if thief.walk.lots.len() >= LOTS_MAX || thief.walk.pace.is_link_bound() {
            return None;
        }
        let keeps = (level * from.rate).max(from.fixed);
        let wanted = (from.left - keeps).min(level * to.rate - to.left);
        let buyer =
            Buyer { plan: &self.plan, recipes: &self.recipes, credit: thief.info.credit_bytes, wanted };
        let seconds = |peer: &Peer, bytes: f64| match peer.walk.pace.link_rate() {
            Some(rate) if !peer.info.shares_memory => bytes / rate,
            _ => 0.0,
        };
        // Who has computed all it had may be sending for long.
        let owed_bytes = thief.walk.owed_bytes(&self.plan);
        let is_worth_it = |offer: &Offer| {
            let ready_s = offer.ready_s + seconds(victim, offer.sum_bytes);
            if to.seconds() > 2.0 * ready_s + AHEAD * total_s {
                return false;
            }
            let work_s = (offer.work / to.rate).max(seconds(thief, offer.panel_bytes));
            let goes_home_s = seconds(thief, owed_bytes).max(to.seconds().max(ready_s) + work_s);
            let done_s = goes_home_s + seconds(thief, offer.home_bytes);
            let rest_s = (from.left - offer.work) / from.rate;
            from.seconds() - done_s.max(rest_s) > GAIN * total_s
        };
        buyer.offers(&victim.walk).find(is_worth_it)
    }

    /// Moves it.
    fn take(&mut self, from: usize, to: usize, offer: Offer) {
        let (lot, loss) = self.take_from(from, offer.take);
        if let Some(loss) = loss {
            self.board.lost(from, loss);
        }
        let victim = &mut self.peers[from].walk;
        victim.lots.retain(|lot| !matches!(lot, Lot::Blocks { numbers, .. } if numbers.is_empty()));
        victim.pace.given -= offer.work;
        let thief = &mut self.peers[to].walk;
        thief.pace.given += offer.work;
        thief.lots.push_back(lot.clone());
        self.stealing.moves.push((from, to, lot));
    }

    /// Takes something from a walk: what, and what of its member's own part of the plan that is (a block of which it
    /// keeps cells is no longer one of its own: the others need not wait for it).
    fn take_from(&mut self, from: usize, take: Take) -> (Lot, Option<Loss>) {
        let victim = &mut self.peers[from].walk;
        let own = |member: usize, numbers: Span| (member == from).then(|| Loss::whole(numbers));
        match take {
            Take::Blocks { lot, first } => match &mut victim.lots[lot] {
                Lot::Blocks { member, numbers } => {
                    let taken = Span::new(first, numbers.end);
                    *numbers = Span::new(numbers.start, first);
                    (Lot::Blocks { member: *member, numbers: taken }, own(*member, taken))
                }
                Lot::One(_) => unreachable!("a single block has no numbers"),
            },
            Take::Lot(lot) => {
                let lot = victim.lots.remove(lot);
                let lot = lot.unwrap_or_else(|| unreachable!("the lot was offered a moment ago"));
                let loss = match &lot {
                    Lot::Blocks { member, numbers } => own(*member, *numbers),
                    Lot::One(_) => None,
                };
                (lot, loss)
            }
            Take::Part { lot, kept, taken } => {
                let last = victim.lots[lot].last(&self.plan);
                let work = last.unwrap_or_else(|| unreachable!("the block was offered a moment ago"));
                let rest = Lot::One(work.piece(kept, work.block.steps.start));
                let mut loss = None;
                match &mut victim.lots[lot] {
                    Lot::One(_) => victim.lots[lot] = rest,
                    Lot::Blocks { member, numbers } => {
                        loss = own(*member, Span::new(numbers.end - 1, numbers.end));
                        *numbers = Span::new(numbers.start, numbers.end - 1);
                        victim.lots.insert(lot + 1, rest);
                    }
                }
                (Lot::One(work.piece(taken, work.block.steps.start)), loss)
            }
            Take::Cells { from: step, kept, taken } => match victim.divisible(&self.plan) {
                Some(work) => {
                    let piece = work.piece(taken, step);
                    (Lot::One(piece), victim.trim(step, kept))
                }
                None => unreachable!("the cells were offered a moment ago"),
            },
        }
    }

    /// The work of the whole product.
    pub(super) fn all_work(&self) -> f64 {
        let elements: f64 = self.plan.regions.iter().map(|r| nearest_f64(r.elements(r.cells()))).sum();
        (elements * nearest_f64(self.plan.problem.k)).max(1.0)
    }

    /// How often something moved.
    pub fn moves(&self) -> usize {
        self.stealing.moves.len()
    }

    /// What moved, by whose it was and who did it.
    pub fn moved(&self) -> Vec<Moved> {
        let all = self.all_work();
        let mut pairs: BTreeMap<(usize, usize), Moved> = BTreeMap::new();
        for (from, to, lot) in self.stealing.moves.iter().filter(|moved| moved.0 < AGAIN) {
            let none = Moved { from: *from, to: *to, times: 0, tile_steps: 0, part: 0.0 };
            let moved = pairs.entry((*from, *to)).or_insert(none);
            moved.times += 1;
            for work in lot.works(&self.plan) {
                moved.tile_steps += work.block.count().saturating_mul(work.block.steps.len());
                moved.part += work.amount(&self.plan) / all;
            }
        }
        pairs.into_values().collect()
    }
}

/// When all would be done if what can be taken were moved at will. Those that could not be done by then with what nobody
/// can take from them give the rest of it and take no part.
fn level(stands: &[Stand]) -> f64 {
    let mut open: Vec<&Stand> = stands.iter().filter(|s| s.rate > 0.0).collect();
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

/// No cells, from the first row and column of some.
fn none_of(cells: Rect) -> Rect {
    Rect::new(Span::new(cells.rows.start, cells.rows.start), cells.cols)
}
