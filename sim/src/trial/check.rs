//! What has to hold after every event of a trial.
//!
//! Invariants: checks change nothing. The number before each is that of `docs/simulator.md`.

use super::joins::comer;
use super::looks;
use super::matter::wrong_digits;
use super::{Scenario, Trial, Values};
use bramble_schedule::limits::{
    CHUNK_BYTES_MAX, LINK_WINDOW_BYTES, NEIGHBOUR_SILENCE_MAX, PRIMARY_SILENCE_MAX, SILENCE_MAX,
};
use bramble_schedule::message::{Missing, ResultHead};
use bramble_schedule::primary::Event;
use std::time::Duration;

/// Every so many events all tiles are looked at.
const TILES_EVERY: u64 = 64;
/// Virtual seconds in which something has to get on.
const STILL_MAX_S: f64 = 60.0;
/// Virtual seconds that a loss may be noticed later than silence is.
const NOTICED_S: f64 = 5.0;
/// No trial takes so many virtual seconds, or events.
const SECONDS_MAX: f64 = 3600.0;
/// See `SECONDS_MAX`.
const EVENTS_MAX: u64 = 3_000_000;

/// What faults make of machines.
pub(super) struct Checks {
    /// When a machine, or its link, was taken away, or the last that it had sent moved.
    died: Vec<Option<Duration>>,
    /// Machines that something happened to that can have them taken for dead.
    suffered: Vec<bool>,
    /// Machines whose links were made slower.
    slowed: Vec<bool>,
    calls: u64,
    /// The primary was suspended, or its clock leapt or stood still.
    odd_clock: bool,
    moves: usize,
    progress: f64,
}

impl Checks {
    pub(super) fn new(peers: usize) -> Self {
        let none = vec![false; peers];
        Self {
            died: vec![None; peers],
            suffered: none.clone(),
            slowed: none,
            calls: 0,
            odd_clock: false,
            moves: 0,
            progress: 0.0,
        }
    }

    /// A machine, or its link, is gone from now on.
    pub(super) fn dies(&mut self, peer: usize, now: Duration) {
        self.died[peer].get_or_insert(now);
        self.suffered[peer] = true;
    }

    /// What a machine that is gone has sent is still on its way now.
    fn speaks(&mut self, peer: usize, now: Duration) {
        self.died[peer] = self.died[peer].map(|_| now);
    }

    /// The primary's clock is not what it should be.
    pub(super) fn clock_goes_wrong(&mut self) {
        self.odd_clock = true;
    }

    pub(super) fn clock_is_odd(&self) -> bool {
        self.odd_clock
    }

    /// A machine's link may now be too slow to wait for.
    pub(super) fn slows(&mut self, peer: usize) {
        self.slowed[peer] = true;
    }

    /// It was, and others do what the machine had.
    pub(super) fn too_slow(&mut self, peer: usize) {
        assert!(self.slowed[peer], "the link of w{peer} is as it was, and taken for too slow");
        self.suffered[peer] = true;
    }

    /// A machine may now seem dead.
    pub(super) fn suffers(&mut self, peer: usize) {
        self.suffered[peer] = true;
    }

    /// Tiles are to be made again.
    pub(super) fn goes_back(&mut self) {
        self.progress = 0.0;
    }
}

impl Trial {
    /// After an event of the primary.
    pub(super) fn check(&mut self, is_new: bool) {
        // (1)
        self.primary.validate();
        // (2)
        self.checks.calls += 1;
        let moves = self.primary.moves();
        let is_due = is_new || moves != self.checks.moves || self.checks.calls.is_multiple_of(TILES_EVERY);
        if is_due && !self.is_over() {
            self.primary.validate_tiles();
            self.checks.moves = moves;
        }
        let progress = self.primary.progress();
        assert!((self.checks.progress..=1.0).contains(&progress), "progress goes back, or beyond the end");
        self.checks.progress = progress;
        // (4)
        let (aside, staged) = self.shell.aside_elements();
        let predicted = self.primary.plan().predicted.primary_memory_bytes;
        assert!(8 * aside <= predicted, "{} bytes wait, {predicted} were predicted", 8 * aside);
        if staged > 0 {
            for peer in 0..self.count {
                assert!(self.shell.staged_of(peer) <= 1, "several tiles of w{peer} are half there");
            }
        }
        for peer in 0..self.count {
            let in_link = self.primary.standing(peer).in_link_bytes;
            let most = (LINK_WINDOW_BYTES + CHUNK_BYTES_MAX) as u64;
            assert!(in_link <= most, "{in_link} bytes are in the link of w{peer}");
        }
    }

    /// (3) An element is what the plan makes of it.
    pub(super) fn check_element(&self, place: usize, when: &str) {
        let (is, should) = (self.shell.c[place], self.expected[place]);
        if is.to_bits() != should.to_bits() {
            let steps = self.primary.plan().regions.first().map_or(0, |region| region.steps());
            let digits = if self.is_digits { wrong_digits(is, steps) } else { None };
            let digits = digits.map(|wrong| format!(": {wrong}")).unwrap_or_default();
            panic!("{when}, and element {place} is {is}, should be {should}{digits}");
        }
    }

    /// (6) Nothing that is still heard of a machine that is gone counts.
    pub(super) fn check_that_the_gone_count_for_nothing(&mut self, peer: usize) {
        let head = ResultHead { c: 0, epoch: 0, step_start: 0, step_end: 1, first_line: 0, lines: 1 };
        let late = [
            Event::Sent { peer, bytes: 1 },
            Event::Credit { peer, bytes: 64 },
            Event::Landed { peer, head },
            Event::Alive { peer },
            Event::Flow { peer, came: 1, gone: 1, held: 0 },
            Event::Missing { peer, missing: Missing { id: 0, lines: 0 } },
            Event::Parted { peer, other: 0 },
            Event::Lost { peer, why: "again".into() },
        ];
        assert!(self.primary.expect(peer, &head).is_err(), "a result of a machine that is gone may land");
        let (losses, tiles) = (self.primary.losses().len(), self.primary.tiles_left());
        let standing = self.primary.standing(peer);
        for event in late {
            let text = format!("{event:?}");
            let now = self.time();
            let actions = self.primary.handle(event, now);
            assert!(actions.is_empty(), "{text} of a machine that is gone counts: {actions:?}");
        }
        assert_eq!((self.primary.losses().len(), self.primary.tiles_left()), (losses, tiles));
        assert_eq!(self.primary.standing(peer), standing);
    }

    /// (6) Of those that are gone nothing counts either when others have come in since, whose numbers are new.
    pub(super) fn check_that_numbers_stay(&mut self) {
        for peer in (0..self.count).filter(|peer| self.shell.sessions[*peer].is_gone).collect::<Vec<_>>() {
            if !self.is_over() {
                self.check_that_the_gone_count_for_nothing(peer);
            }
        }
    }

    /// (8) A machine is lost for a reason.
    pub(super) fn check_loss(&self, peer: usize, why: &str) {
        assert!(self.checks.suffered[peer], "w{peer} is lost, and nothing is wrong with it: {why}");
    }

    /// (8) A worker gives its primary up for a reason.
    pub(super) fn check_patience(&self, peer: usize) {
        let lane = &self.lanes[self.out(peer)];
        let held = lane.held_last.is_some_and(|last| {
            self.agenda.now().seconds_from(last) < PRIMARY_SILENCE_MAX.as_secs_f64() + NOTICED_S
        });
        let is_gone = lane.is_over() || self.shell.sessions[peer].is_gone;
        let held = held || self.stands > 0 || self.watch.stands();
        assert!(held || is_gone, "w{peer} gives up the primary, which has just not said anything to it");
    }

    /// (8) A worker gives its link with another one up for a reason: nothing could come over it.
    pub(super) fn check_silence(&self, from: usize, to: usize) {
        let longest = NEIGHBOUR_SILENCE_MAX.as_secs_f64() + NOTICED_S;
        let held = self.lanes[self.across(from, to)].held_last;
        let held = held.is_some_and(|last| self.agenda.now().seconds_from(last) < longest);
        let is_well = !self.checks.suffered[from] && !self.checks.suffered[to];
        assert!(held || !is_well, "w{to} gives up w{from}, and nothing is wrong with them or their link");
    }

    /// (8) Something gets on, losses are noticed, and it ends.
    pub(super) fn check_time(&mut self) {
        let now = self.agenda.now();
        assert!(now.seconds() < SECONDS_MAX && self.events < EVENTS_MAX, "it does not end");
        let passed = self.clock.passed();
        for peer in 0..self.checks.died.len() {
            // The silence begins with the end of its last words, which a slow link may carry for seconds.
            if self.lanes[self.back(peer)].moves() {
                self.checks.speaks(peer, passed);
            }
            let is_known = self.shell.sessions[peer].is_gone;
            let Some(died) = self.checks.died[peer].filter(|_| !is_known) else { continue };
            let seconds = passed.saturating_sub(died).as_secs_f64();
            assert!(
                self.is_over() || seconds < SILENCE_MAX.as_secs_f64() + NOTICED_S,
                "w{peer} has been gone for {seconds} s, and nobody has noticed"
            );
        }
        if now.seconds_from(self.moved_last) > STILL_MAX_S && !self.is_over() && !self.watch.stands() {
            let computes = self.nodes.iter().any(|node| node.lives && node.running > 0);
            let moves = self.lanes.iter().any(|lane| lane.moves());
            let standing: Vec<_> = (0..self.count).map(|peer| self.primary.standing(peer)).collect();
            assert!(computes || moves, "nothing has happened for {STILL_MAX_S} s: {standing:?}");
        }
    }

    /// When the product is over.
    pub(super) fn check_the_end(&mut self, scenario: &Scenario) {
        // (7)
        let late = Event::Joined(comer(0, 1 << 20, 1.0));
        for event in
            [Event::Tick, late, Event::Alive { peer: 0 }, Event::Lost { peer: 0, why: "late".into() }]
        {
            let now = self.time();
            let actions = self.primary.handle(event, now);
            assert!(actions.is_empty(), "something happens after the end: {actions:?}");
        }
        // Who comes then has a number, by which its shell asks.
        assert_eq!(self.primary.standing(self.count).jobs_given, 0);
        if let Some(why) = &self.shell.failed {
            return self.check_failure(why);
        }
        // (9)
        assert_eq!((self.primary.tiles_left(), self.primary.sums_under_way()), (0, (0, 0)));
        assert!(self.shell.asides.is_empty(), "sums are left over");
        assert!(self.shell.committed.iter().all(|c| *c), "something of C was never committed");
        (0..self.expected.len()).for_each(|place| self.check_element(place, "C is there"));
        if scenario.values == Values::Whole {
            assert_eq!(self.matter.far_off(&self.shell.c), None);
        }
        self.check_work();
    }

    /// (10) Nobody who stays does anything twice or in vain, and of each tile each step came back once.
    fn check_work(&self) {
        let plan = self.primary.plan();
        if plan.regions.iter().any(|region| region.levels > 0) {
            return;
        }
        let once: u64 = plan.regions.iter().map(|region| region.grid.tiles() * region.steps()).sum();
        let all = once + self.looks.steps_again - self.steps_there;
        assert_eq!(self.steps_back.iter().sum::<u64>(), all, "steps that came back");
        for peer in 0..self.nodes.len() {
            let (sent, made, back) = (self.jobs_sent[peer], self.jobs[peer], self.steps_back[peer]);
            let is_gone = self.shell.sessions[peer].is_gone || !self.nodes[peer].lives;
            assert!(
                is_gone || (sent == made && made == back),
                "w{peer}: {sent} jobs, {made} done, {back} back"
            );
        }
    }

    /// (10) Who was there all the time has used up all that it was given, and keeps nothing for anybody.
    pub(super) fn check_what_is_left(&self) {
        if self.shell.failed.is_some() {
            return;
        }
        for (peer, node) in self.nodes.iter().enumerate().filter(|(peer, _)| !self.checks.suffered[*peer]) {
            let left: Vec<u32> = node.held.keys().copied().collect();
            assert!(left.is_empty(), "w{peer} still has matrices {left:?} when all is done");
        }
    }

    /// There is no C only where nobody is left whose word counts, or nobody has room.
    fn check_failure(&self, why: &str) {
        if why == looks::NOBODY_ELSE {
            return assert!(!self.looks.wrong().is_empty(), "C is right, and not kept");
        }
        let gone = |peer: usize| {
            let session = &self.shell.sessions[peer];
            session.is_gone || session.is_cut || self.looks.suspects.contains(&peer)
        };
        let nobody = (0..self.count).all(gone);
        let most = (0..self.count).filter(|peer| !gone(*peer)).map(|peer| self.rooms[peer]).max();
        if why.contains("every machine was lost") {
            return assert!(nobody, "the product failed: {why}");
        }
        check_want(why, most);
    }
}

/// Nobody has the bytes that are named; so many has who has most.
pub(super) fn check_want(why: &str, most: Option<u64>) {
    let needed = why.split(" has the ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let is_right = needed.zip(most).is_some_and(|(needed, most)| needed > most);
    assert!(is_right && why.contains("bytes of memory"), "the product failed: {why}");
}
