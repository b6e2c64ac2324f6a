//! The invariants that are checked after every event of a trial.
//!
//! Invariants: checks change nothing. The number at each check is that of `docs/simulator.md`.

use super::inspection;
use super::trial_data::wrong_digits;
use super::{Scenario, Trial, Values};
use crate::participants;
use bramble_schedule::primary::PrimaryEvent;
use bramble_wire::limits::{
    CHUNK_BYTES_MAX, LINK_WINDOW_BYTES, NEIGHBOUR_SILENCE_MAX, PRIMARY_SILENCE_MAX, SILENCE_MAX,
};
use bramble_wire::message::{Missing, ResultHead};
use std::collections::BTreeSet;
use std::time::Duration;

/// Number of events between two checks of all tiles.
const TILES_EVERY: u64 = 64;
/// Virtual seconds within which the product must make progress.
const STILL_MAX_S: f64 = 60.0;
/// Virtual seconds by which the primary may notice a loss later than the limit of silence.
const NOTICED_S: f64 = 5.0;
/// Limits of a trial in virtual seconds and in events.
const SECONDS_MAX: f64 = 3600.0;
/// See `SECONDS_MAX`.
const EVENTS_MAX: u64 = 3_000_000;

/// Which machines faults have struck, for the checks.
pub(super) struct Checks {
    /// When a machine or its link was lost, or when its last frames still moved.
    died: Vec<Option<Duration>>,
    /// Machines that a fault may make look lost.
    suffered: Vec<bool>,
    /// Machines whose links a fault has slowed.
    slowed: Vec<bool>,
    calls: u64,
    /// Whether the primary was suspended, or its clock jumped or stopped.
    odd_clock: bool,
    moves: usize,
    progress: f64,
    /// Neighbours of lost machines that may not know of the loss yet: (neighbour, lost machine).
    untold: BTreeSet<(usize, usize)>,
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
            untold: BTreeSet::new(),
        }
    }

    /// A machine or its link is lost from now on.
    pub(super) fn machine_died(&mut self, peer: usize, now: Duration) {
        self.died[peer].get_or_insert(now);
        self.suffered[peer] = true;
    }

    /// Frames that a lost machine had sent are still under way.
    fn still_sending(&mut self, peer: usize, now: Duration) {
        self.died[peer] = self.died[peer].map(|_| now);
    }

    /// The primary's clock is wrong from now on.
    pub(super) fn clock_goes_wrong(&mut self) {
        self.odd_clock = true;
    }

    pub(super) fn clock_is_odd(&self) -> bool {
        self.odd_clock
    }

    /// A fault may have made a machine's link too slow.
    pub(super) fn slows(&mut self, peer: usize) {
        self.slowed[peer] = true;
    }

    /// The primary found a link too slow, and reassigned its machine's work.
    pub(super) fn too_slow(&mut self, peer: usize) {
        assert!(self.slowed[peer], "the link of w{peer} was never slowed, and is taken for too slow");
        self.suffered[peer] = true;
    }

    /// A fault may make a machine look lost.
    pub(super) fn may_look_lost(&mut self, peer: usize) {
        self.suffered[peer] = true;
    }

    /// Tiles will be recomputed, so progress falls.
    pub(super) fn goes_back(&mut self) {
        self.progress = 0.0;
    }
}

impl Trial {
    /// The checks after an event of the primary.
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
        let waiting = self.shell.pending.waiting;
        let predicted = self.primary.plan().predicted.primary_memory_bytes;
        assert!(8 * waiting <= predicted, "{} bytes wait, {predicted} were predicted", 8 * waiting);
        if !self.shell.pending.is_empty() {
            for peer in 0..self.members.count {
                assert!(
                    self.shell.pending.staged_of(peer) <= 1,
                    "several tiles of w{peer} are partly received"
                );
            }
        }
        for peer in 0..self.members.count {
            let in_link = self.primary.peer_status(peer).in_link_bytes;
            let most = (LINK_WINDOW_BYTES + CHUNK_BYTES_MAX) as u64;
            assert!(in_link <= most, "{in_link} bytes are in the link of w{peer}");
        }
    }

    /// (3) An element has exactly the value that the plan gives.
    pub(super) fn check_element(&self, place: usize, when: &str) {
        let (is, should) = (self.shell.c[place], self.model.expected[place]);
        if is.to_bits() != should.to_bits() {
            let steps = self.primary.plan().regions.first().map_or(0, |region| region.steps());
            let digits = if self.model.is_digits { wrong_digits(is, steps) } else { None };
            let digits = digits.map(|wrong| format!(": {wrong}")).unwrap_or_default();
            panic!("{when}, and element {place} is {is}, should be {should}{digits}");
        }
    }

    /// (6) Late events of a lost machine have no effect.
    pub(super) fn check_events_of_lost_machine(&mut self, peer: usize) {
        let head = ResultHead { c: 0, epoch: 0, step_start: 0, step_end: 1, first_line: 0, lines: 1 };
        let late = [
            PrimaryEvent::Sent { peer, bytes: 1 },
            PrimaryEvent::Credit { peer, bytes: 64 },
            PrimaryEvent::Landed { peer, head },
            PrimaryEvent::Alive { peer },
            PrimaryEvent::Flow { peer, received: 1, acknowledged: 1, buffered: 0 },
            PrimaryEvent::Missing { peer, missing: Missing { id: 0, lines: 0 } },
            PrimaryEvent::Parted { peer, other: 0 },
            PrimaryEvent::Lost { peer, why: "again".into() },
        ];
        assert!(self.primary.expect(peer, &head).is_err(), "a result of a machine that is gone may land");
        let (losses, tiles) = (self.primary.losses().len(), self.primary.tiles_left());
        let standing = self.primary.peer_status(peer);
        for event in late {
            let text = format!("{event:?}");
            let now = self.time();
            let actions = self.primary.handle(event, now);
            assert!(actions.is_empty(), "{text} of a machine that is gone counts: {actions:?}");
        }
        assert_eq!((self.primary.losses().len(), self.primary.tiles_left()), (losses, tiles));
        assert_eq!(self.primary.peer_status(peer), standing);
    }

    /// (6) Nor do they after other machines have joined, which have new indices.
    pub(super) fn check_events_of_lost_machines(&mut self) {
        for peer in
            (0..self.members.count).filter(|peer| self.shell.sessions[*peer].link.is_gone).collect::<Vec<_>>()
        {
            if !self.is_over() {
                self.check_events_of_lost_machine(peer);
            }
        }
    }

    /// (8) A machine is lost only for a reason.
    pub(super) fn check_loss(&self, peer: usize, why: &str) {
        assert!(self.checks.suffered[peer], "w{peer} is lost, and nothing is wrong with it: {why}");
    }

    /// (8) A worker gives up its primary only for a reason.
    pub(super) fn check_patience(&self, peer: usize) {
        let lane = &self.lanes[self.out(peer)];
        let held = lane.held_last.is_some_and(|last| {
            self.event_queue.now().seconds_from(last) < PRIMARY_SILENCE_MAX.as_secs_f64() + NOTICED_S
        });
        let is_gone = lane.is_over() || self.shell.sessions[peer].link.is_gone;
        let held = held || self.process.stands > 0 || self.process.watch.stands();
        assert!(held || is_gone, "w{peer} gives up the primary, which was heard just now");
    }

    /// (8) A worker gives up its link with another only for a reason: the link could carry nothing.
    pub(super) fn check_silence(&self, from: usize, to: usize) {
        let longest = NEIGHBOUR_SILENCE_MAX.as_secs_f64() + NOTICED_S;
        let held = self.lanes[self.across(from, to)].held_last;
        let held = held.is_some_and(|last| self.event_queue.now().seconds_from(last) < longest);
        let is_well = !self.checks.suffered[from] && !self.checks.suffered[to];
        assert!(held || !is_well, "w{to} gives up w{from}, and nothing is wrong with them or their link");
    }

    /// The primary has lost a machine while tiles were missing: its neighbours must learn of it.
    pub(super) fn expect_neighbours_to_part(&mut self, lost: usize) {
        let knew = |peer: &usize| self.nodes[*peer].ears.contains_key(&lost);
        self.checks.untold.extend((0..self.members.count).filter(knew).map(|peer| (peer, lost)));
    }

    /// (8) A neighbour of a lost machine waits for no panel from it once all that the primary has sent has arrived.
    fn check_neighbours_of_lost_machines(&mut self) {
        let (nodes, sessions) = (&self.nodes, &self.shell.sessions);
        self.checks.untold.retain(|(peer, lost)| {
            let machine = &nodes[*peer].machine;
            machine.lives && !machine.parted.contains(lost) && !sessions[*peer].link.is_closed
        });
        for (peer, lost) in &self.checks.untold {
            let lane = &self.lanes[self.out(*peer)];
            let has_all =
                !lane.is_over() && lane.items().next().is_none() && nodes[*peer].machine.stands == 0;
            assert!(
                !has_all,
                "w{lost} is lost, and its neighbour w{peer} has heard all and still waits for it"
            );
        }
    }

    /// (8) The product makes progress, losses are noticed, and the trial ends.
    pub(super) fn check_time(&mut self) {
        self.check_neighbours_of_lost_machines();
        let now = self.event_queue.now();
        assert!(now.seconds() < SECONDS_MAX && self.record.events < EVENTS_MAX, "it does not end");
        let passed = self.process.clock.passed();
        for peer in 0..self.checks.died.len() {
            // The silence begins with the end of the machine's last frame, which a slow link may carry for seconds.
            if self.lanes[self.back(peer)].moves() {
                self.checks.still_sending(peer, passed);
            }
            let is_known = self.shell.sessions[peer].link.is_gone;
            let Some(died) = self.checks.died[peer].filter(|_| !is_known) else { continue };
            let seconds = passed.saturating_sub(died).as_secs_f64();
            assert!(
                self.is_over() || seconds < SILENCE_MAX.as_secs_f64() + NOTICED_S,
                "w{peer} has been gone for {seconds} s, and the primary has not noticed"
            );
        }
        if now.seconds_from(self.record.moved_last) > STILL_MAX_S
            && !self.is_over()
            && !self.process.watch.stands()
        {
            let computes = self.nodes.iter().any(|node| node.machine.lives && node.machine.tasks.running > 0);
            let moves = self.lanes.iter().any(|lane| lane.moves());
            let standing: Vec<_> =
                (0..self.members.count).map(|peer| self.primary.peer_status(peer)).collect();
            assert!(computes || moves, "nothing has happened for {STILL_MAX_S} s: {standing:?}");
        }
    }

    /// The checks when the product is over.
    pub(super) fn check_the_end(&mut self, scenario: &Scenario) {
        // (7)
        let late = PrimaryEvent::Joined(participants::joining(&self.members.cluster[0]));
        for event in [
            PrimaryEvent::Tick,
            late,
            PrimaryEvent::Alive { peer: 0 },
            PrimaryEvent::Lost { peer: 0, why: "late".into() },
        ] {
            let now = self.time();
            let actions = self.primary.handle(event, now);
            assert!(actions.is_empty(), "something happens after the end: {actions:?}");
        }
        // A machine that joins then gets an index, by which its shell asks.
        assert_eq!(self.primary.peer_status(self.members.count).jobs_given, 0);
        if let Some(why) = &self.shell.failed {
            return self.check_failure(why);
        }
        // (13)
        assert_eq!((self.primary.tiles_left(), self.primary.sums_under_way()), (0, (0, 0)));
        assert!(self.shell.pending.is_empty(), "sums are left over");
        assert!(self.shell.committed.iter().all(|c| *c), "something of C was never committed");
        (0..self.model.expected.len()).for_each(|place| self.check_element(place, "C is there"));
        if scenario.values == Values::Whole {
            assert_eq!(self.model.data.far_off(&self.shell.c), None);
        }
        self.check_work();
    }

    /// (14) No machine that stays computes anything twice or in vain, and each step of each tile came back once.
    fn check_work(&self) {
        let plan = self.primary.plan();
        if plan.regions.iter().any(|region| region.levels > 0) {
            return;
        }
        let once: u64 = plan.regions.iter().map(|region| region.grid.tiles() * region.steps()).sum();
        let all = once + self.inspection.steps_again - self.work.steps_there;
        assert_eq!(self.work.steps_back.iter().sum::<u64>(), all, "steps that came back");
        for peer in 0..self.nodes.len() {
            let (sent, made, back) =
                (self.work.jobs_sent[peer], self.work.jobs[peer], self.work.steps_back[peer]);
            let is_gone = self.shell.sessions[peer].link.is_gone || !self.nodes[peer].machine.lives;
            assert!(
                is_gone || (sent == made && made == back),
                "w{peer}: {sent} jobs, {made} done, {back} back"
            );
        }
    }

    /// (14) A machine without faults has used everything that it was sent, and retains nothing for others.
    pub(super) fn check_what_is_left(&self) {
        if self.shell.failed.is_some() {
            return;
        }
        for (peer, node) in self.nodes.iter().enumerate().filter(|(peer, _)| !self.checks.suffered[*peer]) {
            let left: Vec<u32> = node.machine.memory.held.keys().copied().collect();
            assert!(left.is_empty(), "w{peer} still has matrices {left:?} when all is done");
            let (waiting, ahead) = (node.machine.worker.waiting(), node.machine.jobs_ahead.count());
            assert_eq!((waiting, ahead), ((0, 0), 0), "w{peer}: jobs wait or run when all is done");
        }
    }

    /// A product fails only if no trusted machine is left, or none has enough memory.
    fn check_failure(&self, why: &str) {
        if why == inspection::C_IS_WRONG {
            return assert!(!self.inspection.wrong().is_empty(), "C is right, and not kept");
        }
        let gone = |peer: usize| {
            let session = &self.shell.sessions[peer].link;
            session.is_gone || session.is_cut || self.inspection.suspects.contains(&peer)
        };
        let nobody = (0..self.members.count).all(gone);
        let most =
            (0..self.members.count).filter(|peer| !gone(*peer)).map(|peer| self.members.rooms[peer]).max();
        if why.contains("no other machine holds") {
            return self.check_part_lost(&gone);
        }
        if why.contains("every machine was lost") {
            return assert!(nobody, "the product failed: {why}");
        }
        check_want(why, most);
    }
}

/// (12) No worker is introduced to more workers than the limit. A pair that can link and may need the same panels (with few
/// workers, any pair) is introduced, unless one of the two has reached the limit.
pub(super) fn check_pairs(scenario: &Scenario) {
    let (members, most, pairs) = (&scenario.plan.members, scenario.neighbours_max, scenario.pairs());
    let count = |member: usize| pairs.iter().filter(|(one, other)| [*one, *other].contains(&member)).count();
    for other in 0..members.len() {
        assert!(count(other) <= most, "w{other} is introduced to {} workers, at most {most}", count(other));
        for one in 0..other {
            let times = pairs.iter().filter(|pair| **pair == (one, other)).count();
            let is_useful = members.len() <= most || members[one].may_share(&members[other]);
            let may_meet = scenario.plan.relay && is_useful && scenario.can_link(one, other);
            let has_room = count(one) < most && count(other) < most;
            assert!(times <= usize::from(may_meet), "w{one} and w{other} are introduced {times} times");
            assert!(times == 1 || !(may_meet && has_room), "w{one} and w{other} are not introduced");
        }
    }
}

/// No machine has the bytes that the message names; `most` is the memory of the largest.
pub(super) fn check_want(why: &str, most: Option<u64>) {
    let needed = why.split(" has the ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let is_right = needed.zip(most).is_some_and(|(needed, most)| needed > most);
    assert!(is_right && why.contains("bytes of memory"), "the product failed: {why}");
}
